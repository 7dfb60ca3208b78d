"""Doors out: the log as a Python program uses it, embedded or read-only beside an owner."""
