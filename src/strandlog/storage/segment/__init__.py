"""Segments: log files with their indexes, scanning them, and replacing them after compaction."""
