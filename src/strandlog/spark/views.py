"""`register_views`: every topic of a cluster or a folder as a temporary view of a session.

    register_views(spark, {"bootstrap.servers": "127.0.0.1:9092", "valueFormat": "string"})
    spark.sql("SELECT count(*) FROM `web.clicks`")

A view has the name of its topic and the columns of a batch read with the given options. It is a
DataFrame that reads one topic, so it contains the records that exist when a query first reads it;
Spark keeps the plan of a Python source for later queries. Calling `register_views` again replaces
all views, which then contain newer records, and adds views for topics created since. The views of
deleted topics remain, and reading them is an error.

Internal topics, and topics that the client may not describe, have no view. Spark ignores the case
of names unless spark.sql.caseSensitive is set, so of `Orders` and `orders` only the first in sort
order has a view, and a warning is logged for the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from strandlog.errors import InvalidSettingError
from strandlog.spark.options import BATCH, Options, option_named, parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHOOSING = ("subscribe", "subscribePattern", "assign")
ANY_NAME = "."

logger = logging.getLogger(__name__)


def view_options(given: Mapping[str, str]) -> Options:
    """Validate the options of views, which are those of a batch without its topics."""
    for name, value in given.items():
        if option_named(name) in CHOOSING:
            raise InvalidSettingError(name, value, "remove it: each view reads one topic")
    return parse_options(BATCH, {**given, "subscribePattern": ANY_NAME})


def register_views(spark: SparkSession, options: Mapping[str, str]) -> list[str]:
    """Register every topic as a temporary view; return the names of the views.

    `options` are those of a batch read: the address, `valueFormat` and so on. Quote a name that has
    a dot or a dash in SQL: SELECT * FROM `web.clicks`.
    """
    # Spark's Python processes import this module through the package, without using it.
    from strandlog.spark.schema import record_schema  # noqa: PLC0415 - needs pyspark
    from strandlog.spark.source.access import open_access  # noqa: PLC0415 - slow to load

    parsed = view_options(options)
    with closing(open_access(parsed)) as access:
        topics = sorted({tp.topic for tp in access.partitions()})
    schema = record_schema(parsed)  # with a schema, Spark does not call Python for each view
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
        reader = spark.read.format("strandlog").schema(schema).options(**options)
        reader.option("subscribe", topic).load().createOrReplaceTempView(f"`{topic}`")
    return list(views.values())
