"""Topics as tables: the rounds of a sync, and what they read, decide and report."""
