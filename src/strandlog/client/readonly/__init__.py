"""The read-only log: reads the files of a folder that another process may own."""
