"""Kafka's wire protocol: frames, headers, messages and versions, without any I/O."""
