"""Bulk conversion between values with registered schemas and Arrow columns."""
