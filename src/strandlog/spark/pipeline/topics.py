"""The topics of a pipeline, before it starts: what it reads must be there, what it writes is made.

Without this a query would begin, find no topic at its first write, and fail from within a task.
"""

from __future__ import annotations

from strandlog.client.wire.client import WireClient
from strandlog.errors import TopicExistsError, TopicNotFoundError
from strandlog.spark.options import client_options
from strandlog.spark.pipeline.model import Pipeline


def prepare_topics(pipeline: Pipeline) -> list[str]:
    """Make the topics that sinks and dead letters need; returns the names of the new ones."""
    if pipeline.bootstrap is None:
        return []  # a folder is only read, and its source looks itself
    wanted: dict[str, int | None] = {}
    for sink in pipeline.sinks:
        if sink.kind == "topic":
            wanted[sink.target] = sink.partitions or wanted.get(sink.target)
    for source in pipeline.sources:
        if source.dead_letter is not None:
            wanted.setdefault(source.dead_letter, None)
    settings = client_options(pipeline.bootstrap, pipeline.options)
    with WireClient(pipeline.bootstrap, settings) as client:
        client.check_reachable()
        read = {source.topic: source.name for source in pipeline.sources}
        existing = client.topics([*wanted, *read])
        for topic, name in read.items():
            # A topic that one query writes may be what another one reads.
            if topic not in existing and topic not in wanted:
                error = TopicNotFoundError(topic)
                error.add_note(f"it is the topic of the source {name!r}")
                raise error
        missing = [topic for topic in wanted if topic not in existing]
        for topic in missing:
            try:
                client.create_topic(topic, wanted[topic] or -1)
            except TopicExistsError:
                continue  # another pipeline was quicker
    return missing
