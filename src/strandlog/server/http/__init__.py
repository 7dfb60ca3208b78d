"""The HTTP door: JSON, metrics, live events and health."""
