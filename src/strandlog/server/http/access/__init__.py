"""Authentication of HTTP requests, sessions, and protection from cross-site requests."""
