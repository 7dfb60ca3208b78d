"""The JSON-lines door: one object per line on stdin and stdout."""
