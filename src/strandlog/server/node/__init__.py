"""The JSON-lines node: one object per line on stdin and stdout."""
