"""Parsing of JSON and Avro values into Arrow columns."""
