"""Reading, searching and producing records over HTTP."""
