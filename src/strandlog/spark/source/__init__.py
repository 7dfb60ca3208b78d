"""The source of `format("strandlog")`: batch and streaming reads."""
