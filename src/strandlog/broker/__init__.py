"""The broker's logic: records, topics, groups, transactions, access control and schemas. It is
synchronous, deterministic and non-blocking."""
