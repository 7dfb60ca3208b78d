"""A Kafka broker for the tests of other programs, with faults on demand."""
