"""Lake tables: Delta, Iceberg and plain Parquet behind one interface, and the sync of a topic."""
