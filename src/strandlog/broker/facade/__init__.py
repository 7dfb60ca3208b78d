"""The requests that a `Broker` answers, by subject: records, topics, groups and transactions."""
