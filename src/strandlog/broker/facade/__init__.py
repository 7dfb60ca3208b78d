"""The requests that a `Broker` handles, with their permission checks; one module per subject."""
