"""Flushes: which partitions are fsynced when, and what waits for it."""
