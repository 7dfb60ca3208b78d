"""Kafka's wire protocol, without any I/O: frames, headers, messages, versions."""
