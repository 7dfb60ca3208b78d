"""Connections to the HTTP listener of a broker: its address, TLS and credentials."""
