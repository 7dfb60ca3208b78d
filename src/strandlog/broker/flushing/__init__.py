"""Decides when partitions are fsynced, and completes the requests that wait for it."""
