"""The commands for users, permissions, quotas, certificates and tokens."""
