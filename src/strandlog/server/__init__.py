"""Doors in: whoever speaks to strandlog from outside the process comes through here."""
