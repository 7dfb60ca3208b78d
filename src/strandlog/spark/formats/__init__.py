"""Typed values: JSON and Avro bytes to Arrow columns."""
