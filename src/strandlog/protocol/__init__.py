"""Encoding and decoding of wire messages and stored records, without any I/O."""
