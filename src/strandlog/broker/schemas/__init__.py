"""The schema registry: schemas by subject and version, their checks, and how they are stored."""
