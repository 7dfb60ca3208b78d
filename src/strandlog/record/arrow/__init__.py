"""Decodes batches to Arrow columns and encodes them, without a Python object per record."""
