"""Snapshots, rates and the `/metrics` endpoint."""
