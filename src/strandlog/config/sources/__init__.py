"""Sources of settings: configuration files, environment variables, and Kafka's names for them."""
