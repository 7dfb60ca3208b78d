"""Topic-to-table sync: reading the topic, deciding what to sync, committing, and reporting."""
