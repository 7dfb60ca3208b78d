"""The log of one partition: appends, flushes, recovery, reads and producer state."""
