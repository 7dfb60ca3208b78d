"""The Kafka door: one socket per client, requests in, replies out, in order."""
