"""Lake tables: Delta, Iceberg and plain Parquet behind one interface, and topic-to-table sync."""
