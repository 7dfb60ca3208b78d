"""Segments: log files and their indexes, scanning, caching, and replacement after compaction."""
