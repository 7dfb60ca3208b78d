"""The checks of `strandlog doctor`."""
