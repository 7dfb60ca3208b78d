"""Test cases of pipelines: their files, their comparison with results, and their runs."""
