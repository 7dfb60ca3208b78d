"""`strandlog log`: verify, dump, stats."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

import strandlog
from strandlog.cli.commands import log
from strandlog.storage.files import Files


@pytest.fixture
def filled(cli: CommandLine) -> CommandLine:
    """Two partitions of several batches each."""
    with strandlog.open(cli.data) as owner:
        owner.create_topic("t", 2, {"index.interval.bytes": 100, "segment.bytes": 4096})
        with owner.producer(compression="lz4") as producer:
            for number in range(20):
                producer.send_batch("t", [b"%d.%d" % (number, step) for step in range(40)])
    return cli


def _log_file(cli: CommandLine, partition: int = 0) -> Path:
    return min((cli.data / f"t-{partition}").glob("*.log"))


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_whole_folder_is_verified(filled: CommandLine) -> None:
    found = filled("log", "verify", str(filled.data))
    assert [line.split()[-1] for line in found.lines[1:]] == ["ok", "ok"]
    assert found.err == "2 partitions checked: no damage\n"
    found = filled.inside("log", "verify", str(filled.data), "--json")
    assert found.document["ok"] is True
    assert [row["records"] for row in found.document["partitions"]] == [400, 400]
    found = filled.inside("log", "verify", str(filled.data / "t-1"), "--json")
    assert [row["partition"] for row in found.document["partitions"]] == ["t-1"]


def test_damage_is_reported_with_position_and_offset_and_only_there(filled: CommandLine) -> None:
    path = _log_file(filled)
    batch = json.loads(filled.inside("log", "dump", str(path), "--json").lines[7])
    _flip(path, batch["position"] + 70)
    found = filled("log", "verify", str(filled.data), code=1)
    assert [line.split()[-1] for line in found.lines[1:3]] == ["damaged", "ok"]
    assert found.err == "2 partitions checked: 1 problem\n"
    (line,) = [line for line in found.lines if line.startswith("damage: ")]
    assert f"{path} at byte {batch['position']} (offset {batch['base_offset']})" in line
    assert "checksum does not match" in line
    document = filled.inside("log", "verify", str(filled.data), "--json", code=1).document
    assert document["ok"] is False
    (finding,) = document["partitions"][0]["findings"]
    assert (finding["kind"], finding["path"]) == ("damage", str(path))
    assert 0 < finding["offset"] < document["partitions"][0]["end_offset"]
    assert document["partitions"][1]["findings"] == []


def test_a_torn_tail_is_not_damage(cli: CommandLine) -> None:
    with strandlog.open(cli.data) as owner:
        owner.create_topic("t")
        producer = owner.producer(acks=1)
        for _ in range(5):
            producer.send("t", b"value")
        shutil.copytree(cli.data, cli.data.with_name("dead"))
    dead = cli.data.with_name("dead")
    path = min((dead / "t-0").glob("*.log"))
    os.truncate(path, path.stat().st_size - 5)
    found = cli("log", "verify", str(dead))
    assert "incomplete tail" in found.text
    assert found.err == "1 partition checked: no damage\n"


@pytest.mark.parametrize("name", ["topics.json", "recovery-point-offset-checkpoint"])
def test_a_corrupt_state_file_is_damage(filled: CommandLine, name: str) -> None:
    _flip(filled.data / name, 0)
    found = filled.inside("log", "verify", str(filled.data), "--json", code=1).document
    assert [finding["path"] for finding in found["state"]] == [str(filled.data / name)]
    assert all(row["verdict"] == "ok" for row in found["partitions"])


def test_missing_files_are_damage(filled: CommandLine) -> None:
    shutil.rmtree(filled.data / "t-1")
    found = filled.inside("log", "verify", str(filled.data), code=1)
    assert f"damage: {filled.data / 't-1'}: the folder of this partition is missing" in found.lines
    (filled.data / "t-1").write_bytes(b"")
    found = filled.inside("log", "verify", str(filled.data), code=1)
    assert "the folder of this partition is missing, and a file has its name" in found.text
    for name in ("topics.json", "topics.json.previous"):
        (filled.data / name).unlink(missing_ok=True)
    assert "recreates the topics" in filled.inside("log", "verify", str(filled.data), code=1).text
    for path in filled.data.glob("meta.properties*"):
        path.unlink()
    assert "meta.properties" in filled.inside("log", "verify", str(filled.data), code=1).text


@pytest.mark.parametrize("command", ["verify", "stats", "dump"])
def test_a_folder_without_log_is_an_error(cli: CommandLine, tmp_path: Path, command: str) -> None:
    (tmp_path / "readme").write_text("x")
    assert "is not a strandlog folder" in cli.inside("log", command, str(tmp_path), code=1).err
    assert "no such" in cli.inside("log", command, str(tmp_path / "nothing"), code=1).err


def test_stats_counts_batches_and_records(filled: CommandLine) -> None:
    found = filled("log", "stats", str(filled.data), "--json").document
    assert [(row["partition"], row["records"], row["batches"]) for row in found] == [
        ("t-0", 400, 20),
        ("t-1", 400, 20),
    ]
    assert found[0]["codecs"] == {"lz4": 20}
    assert found[0]["first_timestamp"] <= found[0]["last_timestamp"]
    shown = filled.inside("log", "stats", str(filled.data))
    assert shown.lines[1].split()[0] == "t-0"
    assert shown.err.startswith("2 partitions, 800 records, ")


def test_batches_and_records_are_dumped(filled: CommandLine) -> None:
    found = filled("log", "dump", str(filled.data), "--records", "--json")
    items = [json.loads(line) for line in found.lines]
    batches = [item for item in items if item["kind"] == "batch"]
    records = [item for item in items if item["kind"] == "record"]
    assert (len(batches), len(records)) == (40, 800)
    assert (batches[0]["base_offset"], batches[0]["last_offset"], batches[0]["codec"]) == (
        0,
        19,
        "lz4",
    )
    assert records[0]["value"] == "0.0"
    shown = filled.inside("log", "dump", str(_log_file(filled)), "--records").lines
    assert shown[0] == str(_log_file(filled))
    assert shown[1].startswith("  batch 0-19  at byte 0")
    assert shown[2].startswith("    offset=0  timestamp=")
    assert shown[2].endswith('key=null  value="0.0"')


def test_indexes_and_snapshots_are_dumped(filled: CommandLine) -> None:
    path = _log_file(filled)
    for suffix, field in ((".index", "position"), (".timeindex", "timestamp")):
        lines = filled.inside("log", "dump", str(path.with_suffix(suffix)), "--json").lines
        assert lines
        assert all(json.loads(line)[field] >= 0 for line in lines)
        assert (
            filled.inside("log", "dump", str(path.with_suffix(suffix)))
            .lines[1]
            .startswith("  entry")
        )
    snapshot = max(path.parent.glob("*.snapshot"))
    assert filled.inside("log", "dump", str(snapshot)).lines == [str(snapshot)]
    _flip(snapshot, 3)
    assert "fails its checksum" in filled.inside("log", "dump", str(snapshot)).text
    found = filled.inside("log", "dump", str(filled.data / "topics.json"), code=1)
    assert "only .log, .index" in found.err


def test_a_dump_continues_after_damage(filled: CommandLine) -> None:
    path = _log_file(filled)
    before = filled.inside("log", "dump", str(path)).lines
    _flip(path, 100)
    after = filled.inside("log", "dump", str(path)).lines
    assert after[1].startswith("  DAMAGE at byte 0: ")
    assert after[2:] == before[2:]


def test_a_dump_continues_after_a_segment_is_deleted(
    filled: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = log._files_to_dump

    def list_then_remove(files: Files, path: str) -> list[str]:
        found = listed(files, path)
        Path(found[0]).unlink()
        return found

    monkeypatch.setattr(log, "_files_to_dump", list_then_remove)
    gone = _log_file(filled)
    found = filled.inside("log", "dump", str(filled.data))
    assert found.err == f"note: {gone} was deleted before it could be read\n"
    assert str(_log_file(filled, 1)) in found.lines
