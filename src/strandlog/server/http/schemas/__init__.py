"""The schema registry over HTTP, at the paths of Confluent's API."""
