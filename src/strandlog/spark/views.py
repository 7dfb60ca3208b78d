"""`register_views` creates temporary views for the topics of a cluster or a folder.

    register_views(spark, {"bootstrap.servers": "127.0.0.1:9092", "valueFormat": "string"})
    spark.sql("SELECT count(*) FROM `web.clicks`")

A view has the name of its topic and the columns of a batch read with the given options. It is a
DataFrame that reads one topic, so it contains the records that exist when a query first reads it;
Spark keeps the plan of a Python source for later queries. Calling `register_views` again replaces
all views, which then contain newer records, and adds views for topics created since. The views of
deleted topics remain, and reading them is an error.

Internal topics, and topics that the client may not describe, have no view. Spark ignores the case
of names unless spark.sql.caseSensitive is set, so of `Orders` and `orders` only the first in sort
order has a view, and a warning is logged for the other. If the columns come from a schema registry,
topics without a schema of that type have no view either, and a warning is logged for each.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from strandlog.errors import InvalidSettingError, SchemaError
from strandlog.spark.option_checks import subject, uses_registry
from strandlog.spark.options import BATCH, Options, option_named, parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

CHOOSING = ("subscribe", "subscribePattern", "assign")
ANY_NAME = "."

logger = logging.getLogger(__name__)


def view_options(given: Mapping[str, str]) -> Options:
    """Validate view options, which are batch options without a choice of topics."""
    for name, value in given.items():
        if option_named(name) in CHOOSING:
            raise InvalidSettingError(name, value, "remove it: each view reads one topic")
    return parse_options(BATCH, {**given, "subscribePattern": ANY_NAME})


def register_views(spark: SparkSession, options: Mapping[str, str]) -> list[str]:
    """Register the topics as temporary views; return the names of the views.

    `options` are the options of a batch read: the address, `valueFormat` and so on. In SQL, quote
    names that contain a dot or a dash: SELECT * FROM `web.clicks`.
    """
    # Spark's Python processes import this module through the package, without using it.
    from strandlog.spark.schema import record_schema  # noqa: PLC0415 - needs pyspark
    from strandlog.spark.source.access import open_access  # noqa: PLC0415 - slow to load

    parsed = view_options(options)
    with closing(open_access(parsed)) as access:
        topics = sorted({tp.topic for tp in access.partitions()})
    # With a schema, Spark does not call Python to ask for the schema of each view.
    common = None if uses_registry(parsed) else record_schema(parsed)
    is_case_sensitive = spark.conf.get("spark.sql.caseSensitive", "false") == "true"
    views: dict[str, str] = {}
    for topic in topics:
        other = views.setdefault(topic if is_case_sensitive else topic.lower(), topic)
        if other != topic:
            logger.warning(
                "topic %r has no view: Spark cannot distinguish its name from %r "
                "(spark.sql.caseSensitive is false)",
                topic,
                other,
            )
            continue
        own = {**options, "subscribe": topic}
        schema = common or _registered_schema(own)
        if schema is None:
            del views[topic if is_case_sensitive else topic.lower()]
            continue
        if common is None:
            own["schemaSubject"] = subject(parse_options(BATCH, own))
        reader = spark.read.format("strandlog").schema(schema).options(**own)
        reader.load().createOrReplaceTempView(f"`{topic}`")
    return list(views.values())


def _registered_schema(options: Mapping[str, str]) -> StructType | None:
    """Return the columns of a topic's newest registered schema; if it has none that fits
    `valueFormat`, log a warning and return None."""
    from strandlog.spark.registry import latest_schema, registry_columns  # noqa: PLC0415
    from strandlog.spark.schema import record_schema  # noqa: PLC0415 - needs pyspark

    parsed = parse_options(BATCH, options)
    try:
        return record_schema(parsed, registry_columns(parsed, latest_schema(parsed)))
    except (InvalidSettingError, SchemaError) as error:
        logger.warning("topic %r has no view: %s", options["subscribe"], error)
        return None
