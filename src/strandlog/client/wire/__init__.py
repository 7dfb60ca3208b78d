"""A small blocking Kafka client that transfers raw batches; the entry point is client.py."""
