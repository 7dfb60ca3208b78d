"""Decides when to fsync partitions, and completes the requests that wait for an fsync."""
