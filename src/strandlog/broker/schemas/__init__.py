"""The schema registry: schemas by subject and version, compatibility checks, and storage."""
