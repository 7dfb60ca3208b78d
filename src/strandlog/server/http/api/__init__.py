"""The JSON API: topics, groups, cluster and pipelines."""
