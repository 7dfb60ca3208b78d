"""Progress of streaming queries: offset commits and reports to brokers."""
