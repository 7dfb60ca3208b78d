"""The embedded log: this process owns the data folder."""
