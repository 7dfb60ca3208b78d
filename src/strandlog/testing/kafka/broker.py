"""A real broker in a thread of the test process.

    with strandlog.testing.broker() as broker:
        producer = confluent_kafka.Producer(broker.client_config())
        ...
        records = broker.wait_for_records("orders", 3)

It is the broker of `strandlog serve`, with real sockets and files, by default on a free port of
127.0.0.1 and in a temporary folder. So that tests are fast, it differs in four ways:

    no fsync                              `unsynced_files.py`; the data survives `restart`, but not
                                          a power failure
    group.initial.rebalance.delay.ms=0    a new group does not wait three seconds for more members
    schemas are loaded when needed        the broker starts within milliseconds
    no HTTP and gRPC listeners            the HTTP listener opens when a test first reads `http_url`

With SASL, the broker has a user `test`, who is a super user.

Tests call the methods in their own thread; the methods call the broker in its event loop and wait
for the result. The methods need no Kafka client and no login. `wait_for_records` would block the
event loop of an asynchronous test; such a test awaits `wait_for_records_async`.

A restart keeps the port and the data, so that clients reconnect. `stop` leaves no thread, socket or
file descriptor behind; `close` also removes the temporary folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from strandlog.broker.context import embedded_context
from strandlog.broker.deferred import Deferred
from strandlog.broker.reads.fetch import FetchPartition, FetchPartitionData, FetchRequest
from strandlog.broker.reads.fetched_records import records_of
from strandlog.broker.runtime import run_inline
from strandlog.broker.topics.topic import INTERNAL_TOPICS
from strandlog.client.arguments import check_bytes
from strandlog.clock import stopwatch
from strandlog.config.setting import closest
from strandlog.config.tables.server import PLAINTEXT
from strandlog.errors import TopicNotFoundError, with_text
from strandlog.model import Acks, IsolationLevel, Record
from strandlog.protocol.kafka.schemas import kio
from strandlog.server.background import as_future
from strandlog.server.listeners import ListenerConfig
from strandlog.server.record_io import NewRecord, RecordPosition, RecordProducer
from strandlog.testing.kafka.faults import Faults
from strandlog.testing.kafka.security import ITERATIONS, USER, Security, new_security
from strandlog.testing.kafka.unsynced_files import UnsyncedFiles
from strandlog.testing.server import ServerThread

TEST_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "super.users": f"User:{USER}"}
WAIT_SECONDS = 30.0  # long enough for a busy machine; it matters only when a test fails
TOPIC_CHECK_SECONDS = 0.01
FETCH_BYTES = 8 * 1024 * 1024
SHOWN_VALUE_BYTES = 40

Payload = bytes | str | None
Produced = Payload | tuple[Payload, Payload] | NewRecord  # a value, (key, value) or a full record


class KafkaBroker:
    """A broker for tests. Use it as a context manager, or call `start` and `close`."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        security: str = PLAINTEXT,
        data: Path | str | None = None,
    ) -> None:
        """`settings` are those of `strandlog serve`, under Kafka's names; `security` is PLAINTEXT,
        SSL, SASL_PLAINTEXT or SASL_SSL. `data` is a folder that is kept; by default, the broker
        uses a temporary one."""
        self.faults = Faults()
        self._folder = Path(tempfile.mkdtemp(prefix="strandlog-test-"))
        self.data = self._folder / "data" if data is None else Path(data)
        try:
            self.security: Security = new_security(security, self._folder)
        except BaseException:
            self._remove_folder()
            raise
        self._settings = {**TEST_SETTINGS, **self.security.server_settings, **(settings or {})}
        self._port = 0
        self._server: ServerThread | None = None
        self._producer: RecordProducer | None = None
        self._http_url = ""
        self._context = embedded_context()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker and wait until it accepts connections."""
        assert self._server is None, "the broker is already running"
        # Importing kio temporarily hides another package (`protocol/kafka/schemas.py`), so import
        # it in this thread, which also imports the tests.
        kio("index")
        server = ServerThread(
            self.data,
            self._settings,
            port=self._port,
            files=UnsyncedFiles(self.faults.before_fsync),
            interceptor=self.faults,
            warm_up=False,
        )
        server.start()
        self._server, self._port = server, server.port
        self.faults.attach(server)
        self._producer = RecordProducer(server.server.broker)
        if self.security.uses_sasl:
            self._add_user(server)

    def _add_user(self, server: ServerThread) -> None:
        password = self.security.password

        async def add() -> None:
            broker = server.server.broker
            adding = broker.set_password(self._context, USER, password, iterations=ITERATIONS)
            await as_future(run_inline(adding))

        server.run(add())

    def stop(self) -> None:
        """Stop the broker as SIGTERM would; clients find its port closed. The data is kept, and all
        faults end."""
        server, self._server = self._server, None
        self._http_url = ""
        if server is not None:
            self.faults.clear()
            server.stop()

    def restart(self) -> None:
        """Stop the broker and start it again, with the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker, and remove its temporary folder."""
        self.stop()
        self._remove_folder()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _running(self) -> ServerThread:
        assert self._server is not None, "the broker is not running"
        return self._server

    # -- addresses -------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The address as HOST:PORT."""
        return f"127.0.0.1:{self._port}"

    @property
    def http_url(self) -> str:
        """The address of the HTTP API, the console and the schema registry. The broker opens the
        listener when a test first asks for it."""
        if not self._http_url:
            config = ListenerConfig("http", "http")
            server = self._running
            self._http_url = f"http://{server.run(server.server.open_listener(config))}"
        return self._http_url

    def client_config(self, **more: Any) -> dict[str, Any]:
        """Return client settings for confluent-kafka and other clients based on librdkafka. `more`
        adds settings, with underscores instead of dots in their names."""
        extra = {name.replace("_", "."): value for name, value in more.items()}
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **self.security.client_settings(),
            **extra,
        }

    def aiokafka_config(self, **more: Any) -> dict[str, Any]:
        """Return arguments for aiokafka's producer, consumer and admin client."""
        found: dict[str, Any] = {"bootstrap_servers": self.bootstrap_servers}
        settings = self.security.client_settings()
        if settings:
            found["security_protocol"] = settings["security.protocol"]
        if self.security.ca is not None:
            import ssl  # noqa: PLC0415 - only for TLS

            found["ssl_context"] = ssl.create_default_context(cafile=str(self.security.ca))
        if self.security.uses_sasl:
            found |= {
                "sasl_mechanism": settings["sasl.mechanism"],
                "sasl_plain_username": settings["sasl.username"],
                "sasl_plain_password": settings["sasl.password"],
            }
        return {**found, **more}

    # kafka-python uses the same names.
    kafka_python_config = aiokafka_config

    # -- topics ----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str | None = None,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic and return its name, which is unique by default."""
        topic = name or f"topic-{uuid4().hex}"

        async def create() -> None:
            broker = self._running.server.broker
            await as_future(broker.create_topic(self._context, topic, partitions, config))

        self._running.run(create())
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic, if it exists."""

        async def delete() -> None:
            with contextlib.suppress(TopicNotFoundError):
                await as_future(self._running.server.broker.delete_topic(self._context, name))

        self._running.run(delete())

    # -- records ---------------------------------------------------------------------------------

    def produce(
        self, topic: str, *records: Produced, partition: int | None = None
    ) -> list[RecordPosition]:
        """Append records to an existing topic and return their partitions and offsets. A record is
        a value, a pair of key and value, or a `NewRecord`; text is encoded as UTF-8. The only
        fault that affects this method is `delay_fsync`."""
        producer = self._producer
        assert producer is not None, "the broker is not running"
        new = [_new_record(each) for each in records]
        work = producer.produce(self._context, topic, partition, new, Acks.ALL)
        return self._running.run(work)

    def records(self, topic: str) -> list[Record]:
        """Return the records of a topic that a consumer with isolation.level=read_committed sees,
        partition by partition. A topic that does not exist is an error, as is a damaged log."""
        text = self._missing(topic)
        if text:
            raise with_text(TopicNotFoundError, text)
        return self._collect(topic, None, 0.0)

    def _missing(self, topic: str) -> str:
        """Return the text of the error if a topic does not exist, or else ""."""

        async def names() -> list[str]:
            return self._running.server.broker.topic_names(self._context)

        known = self._running.run(names())
        if topic in known:
            return ""
        near = closest(topic, [each for each in known if each not in INTERNAL_TOPICS])
        advice = f"did you mean {near!r}?" if near else "create it first"
        return f"topic {topic!r} does not exist; {advice}"

    def wait_for_records(
        self, topic: str, count: int, timeout: float = WAIT_SECONDS
    ) -> list[Record]:
        """Wait until a topic contains at least `count` records, and return them all like `records`.
        The topic need not exist yet. The message of TimeoutError shows the last records."""
        if _runs_in_event_loop():
            raise RuntimeError(
                "wait_for_records would block the event loop of this test; "
                "use: await broker.wait_for_records_async(...)"
            )
        return self._wait(topic, count, timeout)

    async def wait_for_records_async(
        self, topic: str, count: int, timeout: float = WAIT_SECONDS
    ) -> list[Record]:
        """Do the same as `wait_for_records` in an asynchronous test."""
        return await asyncio.to_thread(self._wait, topic, count, timeout)

    def _wait(self, topic: str, count: int, timeout: float) -> list[Record]:
        found = self._collect(topic, count, timeout)
        if len(found) < count:
            if text := self._missing(topic):
                raise TimeoutError(f"{text} (after {timeout:g} s)")
            last = ", ".join(repr((each.value or b"")[:SHOWN_VALUE_BYTES]) for each in found[-3:])
            raise TimeoutError(
                f"topic {topic!r} has {len(found)} of {count} records after {timeout:g} s"
                + (f"; the last ones: {last}" if last else "")
            )
        return found

    def _collect(self, topic: str, count: int | None, timeout: float) -> list[Record]:
        """Read a topic to its end. With `count`, first wait for that many records or a timeout."""
        deadline = stopwatch() + timeout
        positions: dict[int, int] = {}
        found: list[Record] = []
        while True:
            wait_ms = max(0, int((deadline - stopwatch()) * 1000))
            data = self._running.run(
                self._fetch(topic, positions, wait_ms if count is not None else 0)
            )
            has_more = False
            for each in data:
                offset = positions[each.partition]
                for decoded in records_of(each, offset, FETCH_BYTES):
                    found += decoded.records
                    positions[each.partition] = decoded.next_offset
                has_more = has_more or positions[each.partition] > offset
            is_enough = count is None or len(found) >= count
            if not has_more and (is_enough or stopwatch() >= deadline):
                return sorted(found, key=lambda record: (record.partition, record.offset))
            if is_enough:
                count = None  # read the rest, without waiting

    async def _fetch(
        self, topic: str, positions: dict[int, int], wait_ms: int
    ) -> list[FetchPartitionData]:
        """Fetch from all partitions, waiting up to `wait_ms` for the topic and for a record."""
        broker, context = self._running.server.broker, self._context
        deadline_ms = broker.clock.monotonic_ms() + wait_ms
        while not broker.has_topic(context, topic):
            if broker.clock.monotonic_ms() >= deadline_ms:
                return []
            await asyncio.sleep(TOPIC_CHECK_SECONDS)
        for number, state in enumerate(broker.partition_states(context, topic)):
            positions.setdefault(number, state.start_offset)
        rows = [
            FetchPartition(topic, number, offset, FETCH_BYTES)
            for number, offset in positions.items()
        ]
        request = FetchRequest(rows, 1, FETCH_BYTES, deadline_ms, IsolationLevel.READ_COMMITTED)
        result = broker.fetch(context, request)
        found = await as_future(result) if isinstance(result, Deferred) else result
        for each in found:
            if each.error is not None:
                raise each.error
        return found


def _runs_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _new_record(record: Produced) -> NewRecord:
    if not isinstance(record, NewRecord):
        key, value = record if isinstance(record, tuple) else (None, record)
        record = NewRecord(_encoded(key), _encoded(value))
    check_bytes(record.value, record.key)
    return record


def _encoded(payload: Payload) -> bytes | None:
    return payload.encode() if isinstance(payload, str) else payload


@contextlib.contextmanager
def broker(
    settings: Mapping[str, str] | None = None,
    *,
    security: str = PLAINTEXT,
    data: Path | str | None = None,
) -> Iterator[KafkaBroker]:
    """Run a broker during a `with` block; the arguments are those of `KafkaBroker`."""
    with KafkaBroker(settings, security=security, data=data) as running:
        yield running


__all__: Sequence[str] = ["KafkaBroker", "NewRecord", "broker"]
