"""Accepts connections: limits, TLS keys and certificates."""
