"""Commands about what -b and -d refer to: clusters and contexts."""
