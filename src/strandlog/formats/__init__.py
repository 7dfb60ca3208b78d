"""Formats of keys and values: JSON, Avro and Protobuf, with or without a schema registry."""
