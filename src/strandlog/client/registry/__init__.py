"""Clients of a schema registry; connect.py opens one over HTTP, folder.py reads a data folder."""
