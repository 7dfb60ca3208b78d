"""The HTTP listener: JSON API, live events, schema registry, metrics, health and console."""
