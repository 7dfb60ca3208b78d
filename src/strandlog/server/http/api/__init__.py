"""The JSON API: topics, groups, cluster, history, pipelines and sessions."""
