"""Reads the old records of a topic from a lake table (option `history`).

    driver    newest version of the table ─▶ progress of each partition, list of files
    task      some files, the wanted offsets ─▶ rows with the columns of records ─▶ Spark

With `history=true`, the table is the one that the broker keeps for the topic (`table.format`);
otherwise, the option is the folder of the table. history.py decides which offsets come from the
table. The table must be one that `strandlog table sync` or a broker writes for this topic, with a
row for each record (append mode): a table in upsert mode has no history. If another program has
added or deleted rows, the table no longer equals the topic, and reading it is an error.

    values of the table   valueFormat          rows
    raw                   any                  decoded from the bytes, like those of the log
    registry (typed)      from the registry    converted to the newest schema (typed_rows.py)
    registry (typed)      other                error: the table does not contain the bytes

A query reads one version of the table. If retention has deleted records that this version lacks,
the query loads the newest version, which contains these records unless they are lost. A table does
not store whether a timestamp is the producer's or the broker's, so `timestampType` is null in its
rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from strandlog.config.units import counted
from strandlog.errors import InvalidSettingError, TableDamagedError, TableSchemaError
from strandlog.model import TopicPartition
from strandlog.spark.options import Options
from strandlog.spark.source.continuity import Bounds
from strandlog.spark.source.history import Division, divided
from strandlog.spark.source.planning import OffsetRange
from strandlog.spark.source.typed_rows import ADVICE, TypedRows
from strandlog.spark.source.typed_rows import COLUMNS as TYPED_COLUMNS
from strandlog.tables.topics.column_names import SCHEMA_IDS

if TYPE_CHECKING:
    import pyarrow as pa

    from strandlog.spark.source.access import LogAccess
    from strandlog.spark.source.decoder import Decoder

OPTION = "history"
BY_TOPIC = "true"
UPSERT, RAW = "upsert", "raw"
TABLE_COLUMNS = ("partition", "offset", "timestamp", "key", "headers", "value")


class TableFiles(NamedTuple):
    """Some data files of a table, and the offsets that a task reads from them."""

    paths: tuple[str, ...]
    topic: str
    ranges: tuple[OffsetRange, ...]
    schema: pa.Schema | None = None  # the table's schema if its values are typed


def folder_of(options: Options, access: LogAccess, bounds: Mapping[TopicPartition, Bounds]) -> str:
    """Return the folder of the table: the option itself or, if it is `true`, the folder of the
    table that the broker keeps for the topic."""
    given: str = options[OPTION]
    if given.lower() != BY_TOPIC:
        return given
    topics = sorted({tp.topic for tp in bounds})
    if len(topics) != 1:
        found = ", ".join(topics) or "none"
        raise InvalidSettingError(OPTION, given, f"expected one topic; subscribed: {found}")
    folder = access.table_folder(topics[0])
    if folder is None:
        raise InvalidSettingError(
            OPTION,
            given,
            f"the broker keeps no table for topic {topics[0]!r}: enable it with `strandlog topic "
            f"alter {topics[0]} -c table.format=delta`, or set {OPTION} to the folder of a table "
            "that `strandlog table sync` writes",
        )
    return folder


class TableHistory:
    """Plans reads from one version of a table, and loads a newer version if records are missing."""

    def __init__(
        self,
        options: Options,
        access: LogAccess,
        bounds: Mapping[TopicPartition, Bounds],
        decoder: Decoder,
    ) -> None:
        self._options = options
        self._folder = folder_of(options, access, bounds)
        self._bounds = bounds
        self._decoder = decoder
        self._schema: pa.Schema | None = None  # the table's schema if its values are typed
        self._files: list[str] = []
        self._gaps: list[OffsetRange] = []
        self.progress: dict[TopicPartition, int] = {}
        self._load()

    @property
    def partitions(self) -> Set[TopicPartition]:
        """The partitions whose progress was looked up, even if the table stores none for them."""
        return self._bounds.keys()

    def _load(self) -> None:
        from strandlog.tables.table import detected_format, open_table  # noqa: PLC0415
        from strandlog.tables.topics.decisions import (  # noqa: PLC0415
            ROWS,
            SUM,
            app_id,
            recorded_gaps,
        )
        from strandlog.tables.topics.source import TopicState  # noqa: PLC0415

        target = self._folder
        found = detected_format(target)
        if found is None:
            raise InvalidSettingError(OPTION, target, "this folder contains no table")
        snapshot = open_table(target, found).load()
        named = snapshot.properties
        self._check(named)
        if named.get("strandlog.values") != RAW:
            self._schema = self._typed_schema(snapshot.layout.schema)
        topic = TopicState(
            named["strandlog.topic"],
            named["strandlog.topic.id"],
            named["strandlog.cluster.id"],
            {},
        )
        expected, count = snapshot.progress(app_id(topic, ROWS)) or 0, snapshot.row_count()
        if count != expected:
            raise InvalidSettingError(
                OPTION,
                target,
                f"another program has changed this table: it has {counted(count, 'row')}, not "
                f"{expected}. `--accept-changes` lets syncs continue, but history needs every "
                "record: restore the table, or write it again with `strandlog table sync "
                "--rebuild`",
            )
        self._gaps = [
            OffsetRange(TopicPartition(topic.name, each.partition), each.start, each.end)
            for each in recorded_gaps(named)
        ]
        for tp in self._bounds:
            offset = snapshot.progress(app_id(topic, tp.partition))
            if offset is not None:
                self.progress[tp] = offset
        end = snapshot.progress(app_id(topic, SUM))
        if end is not None and sum(self.progress.values()) > end:
            raise TableDamagedError(
                f"option {OPTION}: the table is damaged: its offsets do not add up to {end}; "
                "restore it from a copy, or write it again with `strandlog table sync --rebuild`"
            )
        self._files = snapshot.data_files()

    def _check(self, properties: Mapping[str, str]) -> None:
        """Raise an error unless the table has the records of this topic, one row each."""
        target = self._folder
        for tp, bound in self._bounds.items():
            if properties.get("strandlog.topic") != tp.topic:
                raise InvalidSettingError(
                    OPTION, target, f"this is not a table of `strandlog table sync` for {tp.topic}"
                )
            topic_id = properties.get("strandlog.topic.id")
            if bound.topic_id is not None and topic_id != bound.topic_id:
                raise InvalidSettingError(
                    OPTION,
                    target,
                    f"the table has the records of another topic named {tp.topic}, which was "
                    f"deleted: its id is {topic_id}, not {bound.topic_id}",
                )
            if properties.get("strandlog.mode") == UPSERT:
                raise InvalidSettingError(
                    OPTION,
                    target,
                    "the table has only the latest value of each key (mode upsert), so it has no "
                    "history: write a second table with one row per record (`strandlog table sync "
                    f"{tp.topic} FOLDER --mode append`) and set {OPTION} to its folder",
                )

    def _typed_schema(self, schema: pa.Schema) -> pa.Schema:
        """Check that a query can read the typed values of a table, and return the table's
        columns."""
        import pyarrow as pa  # noqa: PLC0415 - slow to load

        from strandlog.tables.schema import merged  # noqa: PLC0415

        others = {"schemaSubject", "protobufMessage"} & self._options.given
        if self._decoder.registered is None or others:
            raise InvalidSettingError(
                OPTION,
                self._folder,
                "the table has typed values and not their bytes: set valueFormat to avro, json or "
                "protobuf, with the registry's schema of the topic and without schemaSubject and "
                "protobufMessage; or write another table with `strandlog table sync --values raw`",
            )
        fields = self._decoder.value_fields
        common = [field for field in schema.field("value").type if field.name in fields.names]
        try:
            merged(pa.schema(common), pa.schema([fields.field(each.name) for each in common]))
        except TableSchemaError as error:
            reason = str(error).partition(";")[0]
            raise InvalidSettingError(
                OPTION, self._folder, f"the schema does not fit that of the table: {reason}"
            ) from error
        missing = [name for name in SCHEMA_IDS if name not in schema.names]
        if missing:
            raise InvalidSettingError(
                OPTION,
                self._folder,
                f"the table has typed values without the column {missing[0]}, because an older "
                f"version of strandlog wrote it; {ADVICE}",
            )
        return schema

    def divide(
        self, ranges: list[OffsetRange], log_starts: Mapping[TopicPartition, int]
    ) -> Division:
        """Divide ranges between the table and the log; if records are in neither, try again with
        the newest version of the table."""
        found = divided(ranges, self.progress, log_starts, self._gaps)
        if found.losses:  # the newest version may contain these records
            self._load()
            found = divided(ranges, self.progress, log_starts, self._gaps)
        return found

    def tasks(self, ranges: list[OffsetRange], count: int) -> list[TableFiles]:
        """Return up to `count` tasks of about the same size, which read the ranges."""
        if not ranges:
            return []
        groups: list[list[str]] = [[] for _ in range(min(count, len(self._files)))]
        sizes = [0] * len(groups)
        for path in sorted(self._files, key=_size, reverse=True):
            smallest = sizes.index(min(sizes))
            groups[smallest].append(path)
            sizes[smallest] += _size(path)
        topic = ranges[0].tp.topic
        schema = self._schema
        return [TableFiles(tuple(group), topic, tuple(ranges), schema) for group in groups]


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0  # the task reports the error


def read_table_files(wanted: TableFiles, decoder: Decoder) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of some files, converted by the decoder."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    from strandlog.tables.reading import data_set  # noqa: PLC0415

    columns = decoder.read_columns
    chosen = [name for name in columns if name in TABLE_COLUMNS]
    typed = None
    if wanted.schema is not None:
        chosen = [*(name for name in chosen if name != "value"), *TYPED_COLUMNS]
        assert decoder.registered is not None, "checked when the query was planned"
        typed = TypedRows(decoder.registered, decoder.value_fields)
    try:
        found = data_set(wanted.paths, wanted.schema)
        for batch in found.to_batches(columns=chosen or ["offset"], filter=_condition(wanted)):
            if not len(batch):
                continue
            if typed is None:
                yield decoder.convert(_records(batch, wanted.topic, columns))
            else:
                parsed = typed.parsed(batch)
                raw = batch.drop_columns(["value"]).rename_columns({"raw_value": "value"})
                yield decoder.convert(_records(raw, wanted.topic, columns), parsed)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise TableDamagedError(
            f"option {OPTION}: cannot read the table: {reason}; if it was vacuumed during the "
            "query, run the query again, and keep old files longer"
        ) from error


def _condition(wanted: TableFiles) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415 - only tasks need it

    partition, offset = pc.field("partition"), pc.field("offset")
    found = None
    for each in wanted.ranges:
        inside = (offset >= each.start) & (offset < each.end) & (partition == each.tp.partition)
        found = inside if found is None else found | inside
    return found


def _records(batch: pa.RecordBatch, topic: str, columns: tuple[str, ...]) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    from strandlog.record.arrow.schema import column_type  # noqa: PLC0415

    schema = pa.schema([(name, column_type(name, "us")) for name in columns])
    made = {
        "topic": pa.array([topic] * len(batch), pa.string()),
        "timestampType": pa.nulls(len(batch), pa.int32()),
    }
    arrays = [
        made[field.name] if field.name in made else batch.column(field.name).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
