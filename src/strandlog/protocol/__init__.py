"""Wire messages, without any I/O: bytes or lines in, structures out, and back."""
