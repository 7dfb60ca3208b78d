"""The commands for users, permissions, certificates and tokens."""
