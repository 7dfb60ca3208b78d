"""Retention and compaction: choosing the segments to remove or rewrite, and doing it."""
