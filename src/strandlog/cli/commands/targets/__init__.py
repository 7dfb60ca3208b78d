"""The commands for clusters and contexts."""
