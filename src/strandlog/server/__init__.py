"""Network listeners (Kafka, gRPC, HTTP, JSON lines) around one `Broker`."""
