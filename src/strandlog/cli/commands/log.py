"""The `strandlog log` commands: verify, dump and stats.

The commands only read files and are safe to use while another process owns the folder. `verify`
checks the files of all partitions and the files that the partitions share
(storage/readonly/verify.py); it exits with code 1 on damage. An incomplete last batch is not
damage: the owner is appending it, or crashed while appending it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from strandlog.broker.topics.topic import topic_from_document
from strandlog.cli.formats.log_dump import dump_file
from strandlog.cli.options import Json, command_app
from strandlog.cli.output import (
    Column,
    message,
    number,
    print_json,
    print_table,
    progress,
    size_text,
    text,
    time_text,
)
from strandlog.config.units import counted
from strandlog.errors import UnknownLayoutError
from strandlog.model import TopicPartition
from strandlog.storage.files import DIRECTORY, DiskFiles, Files
from strandlog.storage.folder.checkpoint import read_document
from strandlog.storage.paths import LOG_SUFFIX, META_PROPERTIES, TOPIC_CATALOG, join, partition_dir
from strandlog.storage.readonly import verify as files_verify
from strandlog.storage.readonly.verify import Finding, PartitionReport

app = command_app("Verify, dump and measure log files.")

Folder = Annotated[
    str, typer.Argument(metavar="DIR", help="Data folder, or the folder of one partition.")
]


@app.command()
def verify(path: Folder, as_json: Json = False) -> None:
    """Check every batch, index, snapshot and checkpoint; exit with code 1 on damage."""
    files, path = DiskFiles(), os.path.abspath(path)
    folders = files_verify.partition_folders(files, path)
    state = _state_findings(files, path, folders)
    with progress("verifying", _log_bytes(files, folders)) as advance:
        reports = list(_look(files, folders, verifies=True, on_bytes=advance))
    is_damaged = any(report.is_damaged for report in reports) or any(
        finding.kind == "damage" for finding in state
    )
    if as_json:
        partitions = [_report_document(report) for report in reports]
        ok = {"path": path, "ok": not is_damaged}
        print_json({**ok, "partitions": partitions, "state": [f._asdict() for f in state]})
    else:
        _print_verdict(reports, state)
    if is_damaged:
        raise typer.Exit(1)


def _look(
    files: Files, folders: list[str], *, verifies: bool, on_bytes: Any = lambda _: None
) -> Iterator[PartitionReport]:
    for folder in folders:
        try:
            yield files_verify.look_at_partition(
                files, folder, verifies=verifies, on_bytes=on_bytes
            )
        except FileNotFoundError:
            if files.exists(folder):
                raise
            # the partition's topic has just been deleted


def _state_findings(files: Files, path: str, folders: list[str]) -> list[Finding]:
    """Check the files that all partitions share, and that the folder of each partition exists. The
    folder of a single partition contains no such files."""
    if folders == [path]:
        return []
    identity, catalog = join(path, META_PROPERTIES), join(path, TOPIC_CATALOG)
    if not files.exists(identity):
        return [Finding("damage", identity, "missing; strandlog does not open a folder without it")]
    findings = files_verify.verify_state(files, path, [TOPIC_CATALOG])
    document = read_document(files, catalog, [])
    if document is None:
        if _log_bytes(files, folders) and not findings:
            lost = (
                "missing; the next start recreates the topics from their folders, but not their "
                "settings"
            )
            findings.append(Finding("damage", catalog, lost))
        return findings
    names = files.list_dir(path)
    for name, described in document["topics"].items():
        topic = topic_from_document(name, described)
        for partition in range(0 if topic.is_deleting else topic.partitions):
            folder = partition_dir(TopicPartition(name, partition))
            if names.get(folder) != DIRECTORY:
                gone = "the folder of this partition is missing"
                gone += ", and a file has its name" if folder in names else ""
                findings.append(Finding("damage", join(path, folder), gone))
    return findings


def _log_bytes(files: Files, folders: list[str]) -> int:
    total = 0
    for folder in folders:
        with suppress(FileNotFoundError):  # the partition's topic has just been deleted
            names = files.list_dir(folder)
            total += sum(size for name, size in names.items() if name.endswith(LOG_SUFFIX))
    return total


def _print_verdict(reports: list[PartitionReport], state: list[Finding]) -> None:
    columns = [text("PARTITION"), number("SEGMENTS"), number("BATCHES"), number("RECORDS")]
    columns += [number("START"), number("END"), number("SIZE"), text("VERDICT")]
    rows = [
        [
            report.name,
            report.segments,
            report.batches,
            report.records,
            report.start_offset,
            report.end_offset,
            size_text(report.size_bytes),
            _verdict(report.findings),
        ]
        for report in reports
    ]
    print_table(columns, rows)
    findings = [*state, *(finding for report in reports for finding in report.findings)]
    for finding in findings:
        typer.echo(_finding_line(finding))
    damage = sum(finding.kind == "damage" for finding in findings)
    checked = counted(len(reports), "partition")
    message(f"{checked} checked: {counted(damage, 'problem') if damage else 'no damage'}")


def _verdict(findings: list[Finding]) -> str:
    kinds = {finding.kind for finding in findings}
    if "damage" in kinds:
        return "damaged"
    return "incomplete tail" if "tail" in kinds else "ok"


def _finding_line(finding: Finding) -> str:
    where = finding.path
    if finding.position is not None:
        where += f" at byte {finding.position}"
    if finding.offset is not None:
        where += f" (offset {finding.offset})"
    return f"{finding.kind}: {where}: {finding.text}"


def _report_document(report: PartitionReport) -> dict[str, Any]:
    return {
        "partition": report.name,
        "verdict": _verdict(report.findings),
        "segments": report.segments,
        "size_bytes": report.size_bytes,
        "batches": report.batches,
        "records": report.records,
        "start_offset": report.start_offset,
        "end_offset": report.end_offset,
        "missing_offsets": report.missing_offsets,
        "first_timestamp": report.first_timestamp,
        "last_timestamp": report.last_timestamp,
        "codecs": dict(report.codecs),
        "findings": [finding._asdict() for finding in report.findings],
    }


@app.command()
def stats(path: Folder, as_json: Json = False) -> None:
    """Count segments, batches, records and bytes; reads only the batch headers."""
    files, path = DiskFiles(), os.path.abspath(path)
    folders = files_verify.partition_folders(files, path)
    with progress("measuring", _log_bytes(files, folders)) as advance:
        reports = list(_look(files, folders, verifies=False, on_bytes=advance))
    if as_json:
        print_json([_report_document(report) for report in reports])
        return
    columns: list[Column] = [text("PARTITION"), number("SEGMENTS"), number("SIZE")]
    columns += [number("BATCHES"), number("RECORDS"), number("START"), number("END")]
    rows = [
        [
            report.name,
            report.segments,
            size_text(report.size_bytes),
            report.batches,
            report.records,
            report.start_offset,
            report.end_offset,
            ",".join(sorted(report.codecs)),
            time_text(report.first_timestamp, "minutes"),
            time_text(report.last_timestamp, "minutes"),
        ]
        for report in reports
    ]
    print_table([*columns, text("CODECS"), text("FIRST"), text("LAST")], rows)
    size = size_text(sum(report.size_bytes for report in reports))
    records = counted(sum(report.records for report in reports), "record")
    message(f"{counted(len(reports), 'partition')}, {records}, {size}")


@app.command()
def dump(
    path: Annotated[
        str,
        typer.Argument(
            metavar="DIR|FILE", help="Folder, or a .log, .index, .timeindex or .snapshot file."
        ),
    ],
    records: Annotated[bool, typer.Option("--records", help="Include the records.")] = False,
    as_json: Json = False,
) -> None:
    """Print the batches of a folder or file (with --records also their records), index entries or a
    producer snapshot."""
    files, path = DiskFiles(), os.path.abspath(path)
    for name in _files_to_dump(files, path):
        try:
            dump_file(files, name, records=records, as_json=as_json)
        except FileNotFoundError:
            message(f"note: {name} was deleted before it could be read")


def _files_to_dump(files: Files, path: str) -> list[str]:
    if not files.exists(path):
        raise UnknownLayoutError(path, "no such file or folder")
    if not os.path.isdir(path):
        return [path]
    found = []
    for folder in files_verify.partition_folders(files, path):
        names = sorted(
            name
            for name, size in files.list_dir(folder).items()
            if name.endswith(LOG_SUFFIX) and size != DIRECTORY
        )
        found += [join(folder, name) for name in names]
    return found
