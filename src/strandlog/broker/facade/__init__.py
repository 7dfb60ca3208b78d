"""The requests that a `Broker` handles: records, topics, groups and transactions."""
