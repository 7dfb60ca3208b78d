"""The permissions that Spark's source and sink need, as the security guide lists them.

Each list is sufficient, and no entry of it can be left out.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import CommandLine
from tests.support.numbered_values import fill
from tests.support.secured_broker import (
    COMMITS,
    CREATE,
    SINK_AT_LEAST_ONCE,
    SINK_EXACTLY_ONCE,
    SOURCE,
    Permissions,
    SecuredBroker,
)

from strandlog.broker.access.permission import TOPIC
from strandlog.client.wire.client import WireClient
from strandlog.errors import AuthorizationError

pa = pytest.importorskip("pyarrow", reason="Spark tests need the spark extra")
pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark.options import BATCH, SINK, STREAM, parse_options  # noqa: E402
from strandlog.spark.sink.writer import BatchSink, TaskId  # noqa: E402
from strandlog.spark.source.access import open_access  # noqa: E402
from strandlog.spark.source.planning import OffsetRange  # noqa: E402

_users = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as running:
        with WireClient(running.open_address) as client:
            for topic in ("in", "out"):
                client.create_topic(topic, 2)
            client.create_topic(COMMITS, 1, {"cleanup.policy": "compact"})
            fill(client, "in", 20)
        yield running


def user_with(broker: SecuredBroker, permissions: Permissions) -> str:
    name = f"user{next(_users)}"
    broker.add_user(name, "secret")
    broker.allow(name, *permissions)
    return name


def read(broker: SecuredBroker, user: str) -> None:
    options = broker.spark(user) | {"subscribe": "in", "groupId": "job"}
    access = open_access(parse_options(STREAM, options))
    try:
        bounds = access.bounds()
        for tp, bound in bounds.items():
            assert list(access.read(OffsetRange(tp, bound.earliest, bound.latest)))
        access.commit_offsets("job", {tp: bound.latest for tp, bound in bounds.items()})
    finally:
        access.close()


def read_batch(broker: SecuredBroker, user: str) -> None:
    access = open_access(parse_options(BATCH, broker.spark(user) | {"subscribe": "in"}))
    try:
        assert access.bounds()
    finally:
        access.close()


def write(broker: SecuredBroker, user: str, *, is_exact: bool) -> None:
    options = parse_options(SINK, broker.spark(user) | {"topic": "out"})
    sink = BatchSink(options, is_exact=is_exact)
    rows: Iterator[Any] = iter([pa.record_batch({"value": pa.array([b"v"], pa.binary())})])
    message = sink.write(TaskId(f"query-{user}", 0, 0, 0), rows)
    sink.publish([message], 0)


def write_exactly_once(broker: SecuredBroker, user: str) -> None:
    write(broker, user, is_exact=True)


def write_at_least_once(broker: SecuredBroker, user: str) -> None:
    write(broker, user, is_exact=False)


CASES = [(SOURCE, read), (SINK_AT_LEAST_ONCE, write_at_least_once)]
CASES += [(SINK_EXACTLY_ONCE, write_exactly_once)]


@pytest.mark.parametrize(("permissions", "use"), CASES)
def test_the_documented_permissions_are_enough(
    broker: SecuredBroker, permissions: Permissions, use: Callable[[SecuredBroker, str], None]
) -> None:
    use(broker, user_with(broker, permissions))


@pytest.mark.parametrize(
    ("permissions", "use", "missing"),
    [(each, use, number) for each, use in CASES for number in range(len(each))],
)
def test_none_of_the_documented_permissions_can_be_left_out(
    broker: SecuredBroker,
    permissions: Permissions,
    use: Callable[[SecuredBroker, str], None],
    missing: int,
) -> None:
    user = user_with(broker, [*permissions[:missing], *permissions[missing + 1 :]])
    with pytest.raises(AuthorizationError, match="this client lacks a permission"):
        use(broker, user)


@pytest.mark.parametrize("use", [read, read_batch, write_exactly_once, write_at_least_once])
def test_permissions_of_a_spark_job_come_out_one_at_a_time(
    broker: SecuredBroker, use: Callable[[SecuredBroker, str], None], tmp_path: Path
) -> None:
    user = user_with(broker, [])
    with pytest.raises(AuthorizationError) as raised:
        use(broker, user)
    _, found, command = str(raised.value).partition("strandlog acl add ")
    assert found, raised.value
    assert f"--principal User:{user}" in command
    CommandLine(tmp_path, broker.open_address).inside("acl", "add", *shlex.split(command))
    use(broker, user)


def test_the_error_of_a_spark_sink_lists_all_permissions(broker: SecuredBroker) -> None:
    user = user_with(broker, SINK_EXACTLY_ONCE[:-1])
    with pytest.raises(AuthorizationError) as raised:
        write_exactly_once(broker, user)
    assert (
        f"User:{user} needs: WRITE, CREATE on TOPIC 'out'; READ, WRITE, CREATE on TOPIC "
        "'strandlog.spark.commits'; READ on GROUP names that start with 'strandlog-spark-'; WRITE "
        "on TRANSACTIONAL_ID names that start with 'strandlog-spark-'."
    ) in str(raised.value)


def test_a_sink_that_may_create_its_commit_topic_needs_no_preparation(tmp_path: Path) -> None:
    with SecuredBroker(tmp_path) as broker:
        with WireClient(broker.open_address) as client:
            client.create_topic("out", 2)
        create = (CREATE.on(TOPIC), COMMITS)
        write_exactly_once(broker, user_with(broker, [*SINK_EXACTLY_ONCE, create]))
