"""The data folder: its lock, identity, checkpoints and disk reserve."""
