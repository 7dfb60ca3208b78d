"""Finds the Java installation that Spark runs on, and makes it start quickly."""
