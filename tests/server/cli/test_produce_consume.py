"""`strandlog produce` and `strandlog consume`."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine
from tests.support.log_builders import batch
from tests.support.undecodable_batches import raw_batch

import strandlog
from strandlog.record.codecs import Codec


def test_ten_thousand_lines_round_trip(anywhere: CommandLine, tmp_path: Path) -> None:
    lines = b"".join(b"line %d %s\n" % (number, b"\xff\x00\r\t%" * 3) for number in range(10_000))
    (tmp_path / "lines").write_bytes(lines)
    found = anywhere.inside("produce", "t", str(tmp_path / "lines"), "--create", "-z", "zstd")
    assert found.err.startswith("produced 10,000 records (")
    assert found.out == b""
    assert anywhere.inside("consume", "t", "-e", "-f", "%s\\n").out == lines
    assert anywhere.inside("consume", "t", "-e", "-n", "3", "-o", "9997").out.count(b"\n") == 3
    assert anywhere("consume", "t", "-e").out == lines


def test_lines_are_sent_unchanged(anywhere: CommandLine) -> None:
    anywhere.inside("produce", "t", "--create", given=b"\n\na\r\n  b  \nlast without end")
    found = anywhere.inside("consume", "t", "-e", "-f", "<%s>")
    assert found.out == b"<><><a\r><  b  ><last without end>"
    anywhere.inside("topic", "create", "empty")
    assert anywhere.inside("produce", "empty", "--json").document["records"] == 0
    assert anywhere.inside("consume", "empty", "-e").out == b""


def test_keys_headers_and_tombstones(anywhere: CommandLine) -> None:
    anywhere.inside(
        "produce", "t", "--create", "-K", ":", "-H", "a=1", "-H", "b=x=y", "-H", "n", "-Z",
        given=b"k:v:w\nkey:\n:value\nno key\n",
    )  # fmt: skip
    with anywhere.read_log() as log:
        records = log.consumer(["t"]).poll()
    assert [(record.key, record.value) for record in records] == [
        (b"k", b"v:w"),
        (b"key", None),
        (None, b"value"),
        (None, b"no key"),
    ]
    assert records[0].headers == (("a", b"1"), ("b", b"x=y"), ("n", None))
    assert anywhere.inside("consume", "t", "-e", "-K", "=").lines == [
        "k=v:w",
        "key=",
        "=value",
        "=no key",
    ]
    found = anywhere.inside("consume", "t", "-e", "-Z", "-f", "%k|%s|%K|%S|%h\\n").lines
    assert found[:3] == [
        "k|v:w|1|3|a=1,b=x=y,n=NULL",
        "key|NULL|3|-1|a=1,b=x=y,n=NULL",
        "NULL|value|-1|5|a=1,b=x=y,n=NULL",
    ]
    assert (
        anywhere.inside("consume", "t", "-n", "1", "-f", "%t %p %o %%\\x21\\n").text == "t 0 0 %!\n"
    )


def test_without_minus_z_only_missing_keys_are_null(anywhere: CommandLine) -> None:
    anywhere.inside("produce", "t", "--create", "-K", "\\t", given=b"\tv\nk\t\nv\n")
    found = [json.loads(line) for line in anywhere.inside("consume", "t", "-e", "--json").lines]
    assert [(row["key"], row["value"]) for row in found] == [("", "v"), ("k", ""), (None, "v")]


@pytest.mark.slow
def test_json_lines_round_trip(anywhere: CommandLine) -> None:
    given = [
        {"value": "text", "key": "k", "headers": {"h": "x"}, "timestamp": 1_700_000_000_000},
        {"value": None, "key": "gone", "partition": 1},
        {"value_base64": "/wA=", "key_base64": "gA==", "headers": [["b", {"base64": "/w=="}]]},
        {"value": {"a": [1, "é"]}, "headers": [["d", "1"], ["d", None]], "partition": 0},
    ]
    anywhere.inside("topic", "create", "t", "-p", "2")
    text = "".join(json.dumps(row) + "\n" for row in given).encode()
    found = anywhere("produce", "t", "--input", "json", "--json", given=text).document
    assert (found["topic"], found["records"]) == ("t", 4)
    printed = anywhere("consume", "t", "-e", "--json").out
    rows = sorted(map(json.loads, printed.splitlines()), key=lambda row: str(row.get("value")))
    assert printed.startswith(b'{"topic": "t", "partition": ')
    by_value = {row.get("value", "bytes"): row for row in rows}
    assert by_value["text"]["timestamp"] == 1_700_000_000_000
    assert by_value["text"]["headers"] == [["h", "x"]]
    assert by_value[None]["partition"] == 1
    assert by_value["bytes"]["value_base64"] == "/wA="
    assert by_value['{"a": [1, "é"]}']["headers"] == [["d", "1"], ["d", None]]

    anywhere.inside("topic", "create", "copy", "-p", "2")
    anywhere.inside("produce", "copy", "--input", "json", given=printed)
    copied = anywhere.inside("consume", "copy", "-e", "--json").out
    assert sorted(copied.replace(b'"copy"', b'"t"').splitlines()) == sorted(printed.splitlines())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense", "invalid JSON"),
        (b"[1]", "expected an object"),
        (b'{"vaule": 1}', "unknown field 'vaule'"),
        (b'{"key": "k"}', "missing field: value"),
        (b'{"value": "v", "value_base64": "AA=="}', "cannot be combined"),
        (b'{"value_base64": "!"}', "not valid base64"),
        (b'{"value": "v", "partition": "0"}', "partition must be an integer"),
        (b'{"value": "v", "headers": 5}', "headers must be"),
        (b'{"value": "\\ud800"}', "surrogate"),
        (b'{"value": "v", "partition": 7}', "has no partition 7"),
    ],
)
def test_an_invalid_line_is_reported_and_all_lines_before_it_are_written(
    anywhere: CommandLine, line: bytes, message: str
) -> None:
    given = b'{"value": "1"}\n{"value": "2"}\n' + line + b'\n{"value": "4"}\n'
    found = json.loads(
        anywhere.inside(
            "produce", "t", "--create", "--input", "json", "--json", given=given, code=1
        ).err
    )
    assert message in found["error"]
    kept = anywhere.inside("topic", "list", "--json").document[0]["offsets"]
    if "line 3" in found["error"]:
        assert kept == 2
    assert found["error"].endswith(f"{kept} records written to t before the error")


def test_a_line_that_is_too_large_fails_and_large_batches_are_split(
    anywhere: CommandLine,
) -> None:
    anywhere.inside("topic", "create", "small", "-c", "max.message.bytes=1000")
    anywhere.inside("produce", "small", given=b"x" * 100 + b"\n" + (b"y" * 90 + b"\n") * 300)
    assert anywhere.inside("topic", "list", "--json").document[0]["offsets"] == 301
    found = anywhere.inside("produce", "small", given=b"fits\n" + b"x" * 2000 + b"\n", code=1)
    assert (
        "exceeds the limit of" if anywhere.is_wire else "exceeds the limit of 1000"
    ) in found.err
    assert "1 record written to small before the error" in found.err
    assert anywhere.inside("consume", "small", "-e", "-o", "-1").lines == ["fits"]


def test_invalid_options_are_usage_errors(cli: CommandLine) -> None:
    assert (
        "-K and -Z cannot be combined with --input json"
        in cli.inside("produce", "t", "--input", "json", "-Z", code=2).err
    )
    assert "-K" in cli.inside("produce", "t", "-K", "\\q", code=2).err
    assert (
        "--json cannot be combined with -f"
        in cli.inside("consume", "t", "--json", "-f", "%s", code=2).err
    )
    assert "unknown letter '%q'" in cli.inside("consume", "t", "-f", "%q", code=2).err
    assert "expected earliest, latest" in cli.inside("consume", "t", "-o", "yesterday", code=2).err
    assert cli.inside("produce", "t", "-z", "rar", code=2).err
    assert cli.inside("produce", "t", "no such file", code=2).err


@pytest.mark.parametrize("options", ["--json -K :", "--json -Z", "-f %s -K :"])
def test_consume_ignores_no_option_for_its_output(cli: CommandLine, options: str) -> None:
    found = cli.inside("consume", "t", *options.split(), code=2)
    assert "cannot be combined" in found.err


@pytest.mark.slow
def test_partitions_can_be_selected_in_produce_and_consume(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t", "-p", "3")
    anywhere.inside("produce", "t", "-p", "2", given=b"a\nb\n")
    anywhere.inside("produce", "t", "-p", "0", given=b"c\n")
    assert anywhere.inside("consume", "t", "-e", "-p", "2").text == "a\nb\n"
    assert sorted(anywhere("consume", "t", "-e", "-p", "2", "-p", "0").lines) == ["a", "b", "c"]
    assert "has no partition 3" in anywhere.inside("consume", "t", "-e", "-p", "3", code=1).err


@pytest.mark.slow
def test_each_form_of_the_start_offset(anywhere: CommandLine) -> None:
    now_ms = int(time.time() * 1000)
    times = [now_ms - 7_200_000 + number * 600_000 for number in range(10)]
    given = "".join(
        json.dumps({"value": str(number), "timestamp": when}) + "\n"
        for number, when in enumerate(times)
    )
    anywhere.inside("produce", "t", "--create", "--input", "json", given=given.encode())
    moment = datetime.fromtimestamp(times[6] / 1000, UTC).isoformat(timespec="milliseconds")
    for start, expected in (
        ("beginning", 10),
        ("end", 0),
        ("7", 3),
        ("-4", 4),
        ("-40", 10),
        (f"@{times[8]}", 2),
        (f"@{times[8] + 1}", 1),
        (f"@{moment}", 4),
        ("@-3h", 10),
        ("@-1s", 0),
    ):
        assert len(anywhere.inside("consume", "t", "-e", "-o", start).lines) == expected, start
    found = anywhere.inside("consume", "t", "-e", "-o", "11", code=1)
    assert "offset 11 is outside t-0 [0, 10)" in found.err


@pytest.mark.slow
def test_a_group_continues_at_its_committed_offsets(anywhere: CommandLine) -> None:
    anywhere.inside("produce", "t", "--create", given=b"1\n2\n3\n4\n5\n")
    assert anywhere("consume", "t", "-g", "g", "-n", "2").lines == ["1", "2"]
    assert anywhere.inside("consume", "t", "-g", "g", "-e").lines == ["3", "4", "5"]
    assert anywhere.inside("consume", "t", "-g", "g", "-e").lines == []
    assert anywhere.inside("consume", "t", "-g", "other", "-e", "-o", "-1").lines == ["5"]
    assert anywhere.inside("consume", "t", "-g", "g", "-e", "-p", "0", "-o", "3").lines == [
        "4",
        "5",
    ]


@pytest.mark.slow
def test_records_that_the_pipe_did_not_take_are_not_committed(anywhere: CommandLine) -> None:
    anywhere.inside("produce", "t", "--create", given=b"a line that fills the pipe\n" * 30_000)
    with anywhere.popen("consume", "t", "-g", "g") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0
    found = anywhere.inside("group", "describe", "g", "--json").document["partitions"]
    committed = found[0]["committed"] if found else 0
    assert (committed or 0) < 30_000


@pytest.mark.slow
def test_a_slow_pipe_is_sent_line_by_line(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t")
    with anywhere.popen("produce", "t") as producer, anywhere.popen("consume", "t") as consumer:
        assert producer.stdin is not None
        assert consumer.stdout is not None
        for number in range(3):
            producer.stdin.write(b"line %d\n" % number)
            producer.stdin.flush()
            assert consumer.stdout.readline() == b"line %d\n" % number
        producer.stdin.close()
        assert producer.wait(30) == 0
        consumer.kill()


def test_an_undecodable_batch_is_an_error_or_is_skipped_with_a_warning(
    cli: CommandLine,
) -> None:
    with strandlog.open(cli.data) as log:
        log.create_topic("t")
        target = log.broker._catalog.log("t", 0)
        for data in (batch(b"a"), raw_batch(b"no gzip at all", 3, Codec.GZIP), batch(b"b")):
            log.broker._appender.append(target, data)
    found = cli.inside("consume", "t", "-e", code=1)
    assert found.out == b"a\n"
    assert "offsets 1 to 3 cannot be decoded" in found.err
    assert "resume at offset 4" in found.err
    found = cli.inside("consume", "t", "-e", "--skip-unreadable")
    assert found.out == b"a\nb\n"
    assert found.err.count("skipped: t-0") == 1
    found = cli.inside("log", "verify", str(cli.data), code=1)
    assert b"offsets 1 to 3 cannot be decoded" in b" ".join(found.out.split())
