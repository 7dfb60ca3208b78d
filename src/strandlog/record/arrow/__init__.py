"""Records as Arrow columns: whole batches decoded and encoded, no Python object per record."""
