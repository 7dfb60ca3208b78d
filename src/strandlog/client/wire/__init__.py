"""A small blocking client of Kafka's protocol that moves raw batches: client.py is the way in."""
