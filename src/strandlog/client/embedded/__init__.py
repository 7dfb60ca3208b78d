"""The embedded log, whose data folder is owned by this process."""
