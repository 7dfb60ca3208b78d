"""Snapshots, rates, their history and the `/metrics` endpoint."""
