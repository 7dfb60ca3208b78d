"""Snapshots, rates and the metrics page."""
