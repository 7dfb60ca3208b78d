"""The remote log: a broker, through librdkafka."""
