"""Sources of settings: configuration files and environment variables, and Kafka's setting names."""
