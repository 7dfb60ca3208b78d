"""Logins over HTTP and gRPC, and the audit log."""
