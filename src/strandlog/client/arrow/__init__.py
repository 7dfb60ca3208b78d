"""Records as Arrow tables, for the consumers and producers of every log."""
