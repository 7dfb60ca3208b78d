"""The commands of `strandlog`, one module each."""
