"""Loops over record bytes that numba compiles to machine code."""
