"""The Python client API: embedded, read-only and remote logs."""
