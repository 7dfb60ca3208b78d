"""Compares the broker with Apache Kafka on the same machine, with the same client, in one run."""
