"""Serves Kafka clients: listener, connections, dispatch, handlers."""
