"""Read-only access to a data folder that another process may be writing."""
