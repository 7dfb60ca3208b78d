"""Where the micro-batches of a pipeline go: topics, lake tables, files and the terminal."""
