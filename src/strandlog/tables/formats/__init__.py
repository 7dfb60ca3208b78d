"""The formats of tables: Delta, Iceberg, and plain Parquet files with a manifest."""
