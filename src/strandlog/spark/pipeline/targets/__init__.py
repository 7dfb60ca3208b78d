"""Targets for the micro-batches of a pipeline: topics, lake tables and the terminal."""
