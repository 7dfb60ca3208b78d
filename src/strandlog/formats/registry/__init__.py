"""Keys and values that a serializer with a schema registry writes, one at a time."""
