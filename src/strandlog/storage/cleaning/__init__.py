"""Retention and compaction: which segments to remove or rewrite, and how."""
