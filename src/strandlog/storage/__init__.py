"""Storage of partition logs: segments, indexes, recovery, retention and compaction."""
