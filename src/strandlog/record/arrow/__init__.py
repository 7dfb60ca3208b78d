"""Records as Arrow columns: decoding and encoding whole batches without a Python object per record."""
