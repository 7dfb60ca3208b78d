"""A pipeline's file: what it says, and what is wrong with it."""

from __future__ import annotations

import pytest

from strandlog.spark.pipeline_file import PipelineFile

GOOD = """\
[pipeline]
name = "flights"
bootstrap = "127.0.0.1:9092"
checkpoint = "./checkpoints"

[[source]]
name = "flights"
topic = "flights"
format = "json"
schema = "carrier STRING, dep_delay DOUBLE, time_hour TIMESTAMP"
watermark = "time_hour 1 hour"
dead_letter = "flights.bad"
options = { maxOffsetsPerTrigger = 1000, failOnDataLoss = false }

[[view]]
name = "delays"
sql = "SELECT carrier, avg(dep_delay) AS delay FROM flights GROUP BY carrier"

[[sink]]
from = "delays"
topic = "delays"
key = "carrier"
mode = "update"
"""


def test_a_good_file_says_all() -> None:
    read = PipelineFile(GOOD)
    assert read.problems == []
    pipeline = read.pipeline
    assert pipeline is not None
    [source] = pipeline.sources
    assert source.watermark == ("time_hour", "1 hour")
    assert source.options == {"maxOffsetsPerTrigger": "1000", "failOnDataLoss": "false"}
    [sink] = pipeline.sinks
    assert (sink.view, sink.kind, sink.target, sink.key) == ("delays", "topic", "delays", "carrier")
    assert sink.name == "delays-topic-delays"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('name = "flights"\nboot', 'nam = "flights"\nboot', 2, "did you mean 'name'"),
        ('bootstrap = "127.0.0.1:9092"\n', "", 1, "either bootstrap"),
        ('topic = "flights"\n', "", 6, "topic"),
        ('format = "json"', 'format = "xml"', 9, "one of json, string, binary"),
        ("schema =", "# schema =", 9, "json needs schema"),
        ('"time_hour 1 hour"', '"time_hour"', 11, "COLUMN DELAY"),
        ("[[view]]", "[view]", 15, "two brackets"),
        ('name = "delays"', 'name = "flights"', 16, "called 'flights' already"),
        ('name = "delays"', 'name = "late flights"', 16, "letters, digits and _"),
        ('from = "delays"', 'from = "delay"', 20, "did you mean 'delays'"),
        ('topic = "delays"', 'topic = "delays"\nparquet = "x"', 19, "exactly one of"),
        ('mode = "update"', 'mode = "upsert"', 23, "append, update, complete"),
        ('mode = "update"', 'mood = "update"', 23, "did you mean 'mode'"),
        ('topic = "delays"\nkey', 'parquet = "x"\nkey', 22, "only records of a topic"),
        ("[[sink]]", "[[sunk]]", 19, "sunk"),
        ("[pipeline]", "[pipeline", 1, "not TOML"),
    ],
)
def test_a_mistake_has_its_line(old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    read = PipelineFile(GOOD.replace(old, new, 1))
    assert read.pipeline is None
    told = [str(problem) for problem in read.problems]
    assert any(text.startswith(f"line {line}:") and words in text for text in told), told


def test_all_mistakes_come_at_once() -> None:
    text = GOOD.replace('mode = "update"', 'mode = "x"').replace('format = "json"', 'format = "y"')
    assert len(PipelineFile(text).problems) == 2


def test_the_same_sink_twice_would_share_a_checkpoint() -> None:
    again = GOOD[GOOD.index("[[sink]]") :]
    [problem] = PipelineFile(GOOD + again).problems
    assert "twice" in problem.text
