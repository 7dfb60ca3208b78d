"""Converts stored columns to the columns of another version of their schema."""
