"""The sink of `format("strandlog")`: exactly-once batch and streaming writes."""
