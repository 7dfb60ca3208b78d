"""Benchmarks of strandlog on this machine."""
