"""Topics: the catalog of topics, the rules for their names, and their settings."""
