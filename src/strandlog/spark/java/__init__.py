"""The Java installation that Spark runs on, and how it starts quickly."""
