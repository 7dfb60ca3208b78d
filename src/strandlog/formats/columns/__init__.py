"""Values of a schema registry as Arrow columns, in bulk, and columns as values."""
