"""The data folder: its lock, identity, checkpoints and reserve of disk space."""
