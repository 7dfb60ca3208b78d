"""The broker's logic: records, topics, groups, transactions, access control and schemas. It is
synchronous and deterministic, and starts no threads."""
