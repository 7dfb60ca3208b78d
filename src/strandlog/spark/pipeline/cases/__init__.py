"""Test cases for pipelines: parses case files, runs the cases and compares the results."""
