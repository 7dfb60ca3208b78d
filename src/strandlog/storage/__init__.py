"""Files: segments, indexes, recovery, retention and compaction of partition logs."""
