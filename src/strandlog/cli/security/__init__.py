"""Keys, certificates, tokens, passwords and permissions, for the security commands."""
