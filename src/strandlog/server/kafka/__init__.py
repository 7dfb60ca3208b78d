"""Serves Kafka clients: listener, connections, dispatch and handlers."""
