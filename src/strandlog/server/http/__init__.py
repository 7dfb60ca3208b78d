"""The HTTP listener: JSON API, metrics, live events, health and console."""
