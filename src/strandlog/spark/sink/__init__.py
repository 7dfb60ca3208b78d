"""The sink of `format("strandlog")`: batch and streaming writes, exactly once."""
