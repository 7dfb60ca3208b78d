"""Table formats: Delta, Iceberg, and plain Parquet files with a manifest."""
