"""The console: a web page made of static files."""
