"""Pipeline files: what is read from them, and the problems that are found."""

from __future__ import annotations

import pytest

from strandlog.spark.pipeline.file import PipelineFile, column_names
from strandlog.spark.pipeline.lineage import dead_letter_group, query_names

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


def test_a_valid_file_becomes_a_pipeline() -> None:
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


def test_values_with_a_registered_schema() -> None:
    text = GOOD.replace('format = "json"', 'format = "protobuf"')
    lines = [line for line in text.splitlines() if not line.startswith("schema =")]
    read = PipelineFile("\n".join(lines).replace('mode = "update"', 'format = "avro"'))
    assert read.pipeline is not None, read.problems
    [source], [sink] = read.pipeline.sources, read.pipeline.sinks
    assert (source.format, source.schema, sink.format) == ("protobuf", None, "avro")


def test_a_topic_with_a_format_cannot_name_its_schema_registry() -> None:
    options = 'options = { schemaRegistry = "http://host:8081", schemaSubject = "s" }'
    for form in ("json", "avro", "protobuf"):
        read = PipelineFile(GOOD.replace('mode = "update"', f'format = "{form}"\n{options}'))
        assert read.pipeline is not None, read.problems
    [problem] = PipelineFile(GOOD.replace('mode = "update"', options)).problems
    assert "requires valueFormat" in problem.text


def test_the_report_address_is_optional() -> None:
    reporting = GOOD.replace("checkpoint =", 'report = "http://host:9095"\ncheckpoint =')
    for text, report in ((GOOD, None), (reporting, "http://host:9095")):
        pipeline = PipelineFile(text).pipeline
        assert pipeline is not None
        assert pipeline.report == report


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('name = "flights"\nboot', 'nam = "flights"\nboot', 2, "did you mean 'name'"),
        ("bootstrap =", 'data = "./data"\nbootstrap =', 1, "or data (a folder), not both"),
        ('topic = "flights"\n', "", 6, "topic"),
        ('format = "json"', 'format = "xml"', 9, "json, avro, protobuf, string, binary"),
        ('"time_hour 1 hour"', '"time_hour"', 11, "COLUMN DELAY"),
        ('"time_hour 1 hour"', '"time_hour soon"', 11, "\"10 seconds\", not 'soon'"),
        ('"time_hour 1 hour"', '"time_our 1 hour"', 11, "did you mean 'time_hour'"),
        ('format = "json"', 'format = "string"', 12, "can fail to parse"),
        ('format = "json"', 'format = "json"\nstatic = true', 12, "has no event time"),
        ('format = "json"', 'format = "json"\nstatic = true', 13, "again for every micro-batch"),
        ('format = "json"', 'format = "json"\nstatic = "yes"', 10, "true or false"),
        ("maxOffsetsPerTrigger = 1000", "maxOffsetPerTrigger = 1000", 13, "maxOffsetsPerTrigger"),
        ("maxOffsetsPerTrigger = 1000", "maxOffsetsPerTrigger = 0", 13, "from 1 to"),
        ('checkpoint = "', 'trigger = "soon"\ncheckpoint = "', 4, "\"10 seconds\", not 'soon'"),
        ('checkpoint = "', 'report = "host"\ncheckpoint = "', 4, "http://HOST:PORT"),
        (
            'checkpoint = "',
            'options = { topic = "x" }\ncheckpoint = "',
            4,
            "only options that start with kafka.",
        ),
        (
            'mode = "update"',
            'options = { txnAppId = "x" }',
            23,
            "txnAppId and txnVersion must be set together",
        ),
        (
            'mode = "update"',
            'options = { txnAppId = "x", txnVersion = 1 }',
            23,
            "numbers its micro-batches",
        ),
        ('mode = "update"', 'options = { Topic = "flights" }', 23, "key `topic` instead"),
        ("maxOffsetsPerTrigger = 1000", 'subscribe = "delays"', 13, "key `topic` instead"),
        ("maxOffsetsPerTrigger = 1000", 'valueFormat = "avro"', 13, "key `format` instead"),
        ("maxOffsetsPerTrigger = 1000", '"kafka.group.id" = "g"', 13, "named after the pipeline"),
        (
            'checkpoint = "',
            'options = { "kafka.topic" = "flights" }\ncheckpoint = "',
            4,
            "key `topic`",
        ),
        (
            "maxOffsetsPerTrigger = 1000, failOnDataLoss = false }",
            'startingOffsets = "latest" }\nstarting = "earliest"',
            14,
            "not both",
        ),
        ('mode = "update"', "partitions = 0", 23, "an integer of at least 1"),
        ('bootstrap = "127.0.0.1:9092"', 'data = "./data"', 21, "only the owner of a folder"),
        ('bootstrap = "127.0.0.1:9092"', 'data = "./data"', 12, "only the owner of a folder"),
        ("[[view]]", "[view]", 15, "two brackets"),
        ('name = "delays"', 'name = "flights"', 16, "already the name of a source"),
        ('name = "delays"', 'name = "Flights"', 16, "only in case, which SQL ignores"),
        ('name = "delays"', 'name = "late flights"', 16, "letters, digits and _"),
        ('from = "delays"', 'from = "delay"', 20, "did you mean 'delays'"),
        ('topic = "delays"', 'topic = "delays"\nparquet = "x"', 19, "exactly one of"),
        ('mode = "update"', 'mode = "upsert"', 23, "append, update, complete"),
        ('dead_letter = "flights.bad"', 'dead_letter = "flights"', 12, "would feed itself"),
        ('topic = "delays"', 'topic = "flights"', 21, "would feed itself"),
        ('mode = "update"', 'mood = "update"', 23, "did you mean 'mode'"),
        ('topic = "delays"\nkey', 'parquet = "x"\nkey', 22, "only topic records"),
        ('topic = "delays"\nkey', "topic = 7\nkey", 21, "expected a string"),
        ('name = "delays"\n', "", 15, "[view] name: missing key"),
        ('checkpoint = "', 'every = "soon"\ncheckpoint = "', 4, "\"1 hour\", not 'soon'"),
        ('checkpoint = "', 'every = 10\ncheckpoint = "', 4, '"1 hour", not 10'),
        (
            'checkpoint = "',
            'every = "1 h"\ntrigger = "1 second"\ncheckpoint = "',
            4,
            "set every or trigger",
        ),
        ('mode = "update"', 'format = "delta"', 23, "json, avro, protobuf, not 'delta'"),
        ('topic = "delays"\nkey = "carrier"', 'table = "x"', 22, "support only append"),
        (
            'topic = "delays"\nkey = "carrier"\nmode = "update"',
            'table = "x"\nformat = "hudi"',
            22,
            "delta, iceberg, parquet",
        ),
        (
            'topic = "delays"\nkey = "carrier"\nmode = "update"',
            'table = "x"\npartition_by = "day"',
            22,
            'like ["date"]',
        ),
        ('mode = "update"', 'mode = "update"\ngroup = "g"', 23, "a group supports only append"),
        ('mode = "update"', 'group = "1"', 23, "not starting with a digit"),
        (
            'topic = "delays"\nkey = "carrier"\nmode = "update"',
            'parquet = "x"\ngroup = "g"',
            21,
            'format = "parquet"',
        ),
        ("[[sink]]", "[[sunk]]", 19, "sunk"),
        ("[pipeline]", "[pipeline", 1, "invalid TOML"),
    ],
)
def test_a_problem_has_the_line_of_its_cause(old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    read = PipelineFile(GOOD.replace(old, new, 1))
    assert read.pipeline is None
    found = [str(problem) for problem in read.problems]
    assert any(text.startswith(f"line {line}:") and words in text for text in found), found


def test_sinks_with_one_group_share_a_query_that_also_writes_the_dead_letters() -> None:
    sinks = "".join(
        f'[[sink]]\nfrom = "flights"\ntopic = "copy-{number}"\ngroup = "{group}"\n'
        for number, group in enumerate(("one", "two", "one"))
    )
    pipeline = PipelineFile(GOOD + sinks).pipeline
    assert pipeline is not None
    assert [(each.name, len(each.sinks)) for each in pipeline.groups] == [("one", 2), ("two", 1)]
    [source] = pipeline.sources
    assert dead_letter_group(pipeline, source) == pipeline.groups[0]
    assert query_names(pipeline) == ["delays-topic-delays", "group-one", "group-two"]


def test_the_sinks_of_a_group_read_one_stream() -> None:
    other = """
[[source]]
name = "weather"
topic = "weather"
format = "string"

[[sink]]
from = "weather"
topic = "copy-1"
group = "g"

[[sink]]
from = "flights"
topic = "copy-2"
group = "g"
"""
    [problem] = PipelineFile(GOOD + other).problems
    assert problem.line == 33
    assert "must read one stream, but they read flights and weather" in problem.text


def test_a_schedule_is_an_interval() -> None:
    pipeline = PipelineFile(GOOD.replace("checkpoint", 'every = "10 min"\ncheckpoint', 1)).pipeline
    assert pipeline is not None
    assert pipeline.every_ms == 600_000


@pytest.mark.parametrize(
    ("tables", "is_loop"),
    [
        ([("a", "t1", "v1", "SELECT * FROM a", "t2"), ("b", "t2", "v2", "FROM b", "t3")], False),
        ([("a", "t1", "v1", "SELECT * FROM a", "t2"), ("b", "t2", "v2", "FROM b", "t1")], True),
        ([("a", "t1", "v1", "SELECT 'x from a' FROM b", "t1"), ("b", "t2", "v2", "FROM b", "t3")],
         False),
        ([("a", "t1", "v1", "SELECT 1", "t9"), ("b", "t2", "v2", "SELECT b FROM v1, A x", "t1")],
         True),
    ],
)  # fmt: skip
def test_a_pipeline_that_feeds_itself_is_a_problem_and_a_chain_is_not(
    tables: list[tuple[str, ...]], is_loop: bool
) -> None:
    text = GOOD[: GOOD.index("[[source]]")]
    for name, topic, *_ in tables:
        text += f'[[source]]\nname = "{name}"\ntopic = "{topic}"\nformat = "string"\n'
    for _, _, view, sql, _ in tables:
        text += f'[[view]]\nname = "{view}"\nsql = "{sql}"\n'
    for *_, view, _, target in tables:
        text += f'[[sink]]\nfrom = "{view}"\ntopic = "{target}"\n'
    problems = PipelineFile(text).problems
    assert any("would feed itself" in problem.text for problem in problems) == is_loop
    assert is_loop or not problems


def test_all_problems_are_reported_at_once() -> None:
    text = GOOD.replace('mode = "update"', 'mode = "x"').replace('format = "json"', 'format = "y"')
    assert len(PipelineFile(text).problems) == 2


def test_two_equal_sinks_are_a_problem_because_they_would_share_a_checkpoint() -> None:
    again = GOOD[GOOD.index("[[sink]]") :]
    [problem] = PipelineFile(GOOD + again).problems
    assert "same target" in problem.text


def test_column_names_are_found_in_a_schema_with_nested_types() -> None:
    schema = "id BIGINT, place STRUCT<x: DOUBLE, y: DECIMAL(4, 2)>, `time hour` TIMESTAMP"
    assert column_names("a: INT," + schema) == ["a", "id", "place", "time hour"]


def test_a_static_source_needs_a_stream_beside_it() -> None:
    table = """\
[[source]]
name = "carriers"
topic = "carriers"
schema = "carrier STRING, name STRING"
static = true

"""
    read = PipelineFile(GOOD.replace("[[view]]", table + "[[view]]"))
    assert read.problems == []
    assert read.pipeline is not None
    assert [source.is_static for source in read.pipeline.sources] == [False, True]
    start, end = GOOD.index("[[source]]"), GOOD.index("[[view]]")
    alone = table.replace("carriers", "flights")
    [problem] = PipelineFile(GOOD[:start] + alone + GOOD[end:]).problems
    assert (problem.line, problem.text) == (
        10,
        "[source] static: at least one source must be a stream",
    )


@pytest.mark.parametrize("name", ["../x", "..", ".", "team/flights", "team\\flights", "a b", "ä"])
def test_a_pipeline_name_that_is_no_folder_name_is_a_problem(name: str) -> None:
    [problem] = PipelineFile(GOOD.replace('"flights"', repr(name), 1)).problems
    assert problem.line == 2
    assert "letters, digits and . _ -" in problem.text


# -- security --------------------------------------------------------------------------------------

SECURE = """\
[pipeline.security]
username = "flights"
password = "${file:/run/secrets/flights}"
ca = "ca.pem"

"""


def _secured(table: str) -> PipelineFile:
    return PipelineFile(GOOD.replace("[[source]]", table + "[[source]]", 1))


def test_security_becomes_client_options_that_hold_references() -> None:
    read = _secured(SECURE)
    assert read.problems == []
    assert read.pipeline is not None
    assert read.pipeline.options == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": "flights",
        "kafka.sasl.password": "${file:/run/secrets/flights}",
        "kafka.ssl.ca.location": "ca.pem",
    }


def test_mutual_tls_needs_no_user_and_the_key_may_be_in_the_file_of_the_certificate() -> None:
    read = _secured('[pipeline.security]\nprotocol = "SSL"\ncertificate = "own.pem"\n')
    assert read.pipeline is not None
    assert read.pipeline.options == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.certificate.location": "own.pem",
        "kafka.ssl.key.location": "own.pem",
    }


def test_a_token_implies_its_mechanism() -> None:
    read = _secured('[pipeline.security]\ntoken = "${env:TOKEN}"\n')
    assert read.pipeline is not None
    assert read.pipeline.options == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token": "${env:TOKEN}",
    }


@pytest.mark.parametrize(
    ("table", "line", "words"),
    [
        ('username = "u"\npassword = "hunter2"', 8, 'set password = "${file:PATH}"'),
        ('username = "u"\npassword = "x${env:A}"', 8, "do not write the secret"),
        ('username = "u"', 6, "SCRAM-SHA-512 requires password"),
        ('usr = "u"\npassword = "${env:A}"', 6, "SCRAM-SHA-512 requires username"),
        ('protocol = "TLS"', 7, "expected one of PLAINTEXT, SSL"),
        ('protocol = "PLAINTEXT"', 7, "remove the table"),
        ('protocol = "SSL"\nusername = "u"', 8, "SSL has no login"),
        ('mechanism = "OAUTHBEARER"', 7, "requires token"),
        ('mechanism = "GSSAPI"', 7, "expected one of PLAIN, SCRAM"),
        ('protocol = "SSL"\nkey = "k.pem"', 8, "set certificate too"),
        ("username = 7", 7, "expected a string"),
    ],
)
def test_a_problem_of_security_has_its_line_and_does_not_show_secrets(
    table: str, line: int, words: str
) -> None:
    problems = _secured(f"[pipeline.security]\n{table}\n\n").problems
    assert any(problem.line == line and words in problem.text for problem in problems), problems
    assert "hunter2" not in str(problems)


def test_security_needs_a_broker() -> None:
    text = GOOD.replace('bootstrap = "127.0.0.1:9092"', 'data = "./data"')
    problems = PipelineFile(text.replace("[[source]]", SECURE + "[[source]]", 1)).problems
    assert any("apply only to broker connections" in problem.text for problem in problems)


def test_an_option_must_not_contradict_security() -> None:
    table = 'options = { "kafka.sasl.username" = "other" }\n\n' + SECURE
    [problem] = _secured(table).problems
    assert "kafka.sasl.username is already set in [pipeline.security]" in problem.text


@pytest.mark.parametrize(
    ("option", "value", "is_literal"),
    [
        ("kafka.sasl.password", "hunter2", True),
        ("kafka.sasl.password", "${env:A}", False),
        ("kafka.sasl.jaas.config", "x required username=u password=hunter2;", True),
        ("kafka.sasl.jaas.config", "x required username=u password='${file:/a}';", False),
        ("kafka.ssl.key.pem", "-----BEGIN PRIVATE KEY-----", True),
        ("kafka.ssl.keystore.key", "${file:key.pem}", False),
    ],
)
def test_a_secret_in_the_options_of_a_table_must_be_a_reference(
    option: str, value: str, is_literal: bool
) -> None:
    text = GOOD.replace(
        'mode = "update"', f'mode = "update"\noptions = {{ "{option}" = "{value}" }}'
    )
    problems = PipelineFile(text).problems
    assert bool(problems) == is_literal
    assert all("do not write the secret into this file" in each.text for each in problems)
    assert "hunter2" not in str(problems)
