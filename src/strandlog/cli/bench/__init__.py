"""The load generator of `strandlog bench`."""
