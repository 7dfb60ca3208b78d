"""Decides what a principal may do: ACLs and the authorizer."""
