"""Tables of settings: one row per setting, grouped by the part of the system that reads it."""
