"""The requests that a `Broker` handles, by subject: records, topics, groups and transactions."""
