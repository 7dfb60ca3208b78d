"""The topic catalog, the rules for topic names, dynamic settings, and lake tables."""
