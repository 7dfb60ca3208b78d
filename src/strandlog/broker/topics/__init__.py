"""The topic catalog, the rules for topic names, and topic settings."""
