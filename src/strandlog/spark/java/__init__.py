"""Finds Java for Spark, makes it start quickly, and keeps signals away from it."""
