"""Watches the event loop, and reports the state of the server to systemd."""
