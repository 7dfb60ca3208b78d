"""Progress of streaming queries: committed offsets and reports to a broker."""
