"""The remote log: accesses a broker through librdkafka."""
