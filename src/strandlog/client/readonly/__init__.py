"""The read-only log, which reads the files of a folder that another process may own."""
