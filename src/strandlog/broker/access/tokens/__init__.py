"""Logins with bearer tokens."""
