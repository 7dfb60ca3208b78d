"""The command line interface; `commands` has one module per command."""
