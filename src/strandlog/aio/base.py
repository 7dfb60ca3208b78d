"""The base classes of all asyncio logs: worker threads, waiting consumers, send queues and closing.

`close` rejects new calls, completes the sends in progress, raises ClosedError in tasks that wait
for records, closes the consumers, producers and the log, and ends the worker threads.

A task that is cancelled while it waits for a call stops waiting. A queued send, or a consumer call
that waits for its turn, is then dropped; any other call runs to completion in its thread. A task
that is cancelled in `close` still waits until closing is complete, so that nothing stays open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Generic, ParamSpec, TypeVar, cast
from weakref import WeakSet

from strandlog.aio.consumer import Consumer, ConsumerOptions
from strandlog.aio.opening import AsyncClosable, Opening
from strandlog.aio.producer import Producer
from strandlog.aio.rounds import Rounds
from strandlog.aio.send_queue import SendQueue
from strandlog.aio.waiting import Interest, Waiting, recheck_seconds
from strandlog.aio.workers import Workers, finish, ignore_outcome
from strandlog.broker.access.acl import Acl, AclFilter
from strandlog.broker.access.scram import DEFAULT_ITERATIONS
from strandlog.broker.groups.requests import GroupDescription
from strandlog.client.api import (
    EVERY_ACL,
    EVERY_MECHANISM,
    AnyConsumer,
    AnyProducer,
    OpenLog,
    ReadableLog,
    TopicInfo,
    UserInfo,
)
from strandlog.client.arguments import Acks, iteration_timeout
from strandlog.client.stepped import Step, SteppedConsumer, SteppedProducer
from strandlog.config.setting import Value
from strandlog.errors import StrandlogError
from strandlog.model import OffsetAndMetadata, TopicPartition

P = ParamSpec("P")
R = TypeVar("R")
ReadableT = TypeVar("ReadableT", bound=ReadableLog)
OpenT = TypeVar("OpenT", bound=OpenLog)

PARALLEL_ROUNDS = 2  # the second one can read while the first one waits for an fsync


class AsyncReadableLog(AsyncClosable, Generic[ReadableT]):
    """A log that can be read."""

    internal_names = frozenset(
        {"longest_look_seconds", "pause", "rounds", "run_step", "waiting", "workers"}
    )

    def __init__(self, log: ReadableT, workers: Workers) -> None:
        self._log = log
        self._consumers: WeakSet[Consumer] = WeakSet()
        self._closing: asyncio.Task[None] | None = None
        self.workers = workers
        self.waiting = Waiting(workers.loop)
        self.rounds = Rounds(workers, PARALLEL_ROUNDS)

    def __repr__(self) -> str:
        return repr(self._log).replace("strandlog.", "strandlog.aio.", 1)

    async def _call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function of the synchronous log in a worker thread."""
        self.workers.check("log")
        return await self.workers.run(partial(function, *args, **kwargs))

    # -- topics and groups ---------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return the names of all topics except internal ones."""
        return await self._call(self._log.topics)

    async def describe_topic(self, name: str) -> TopicInfo:
        """Return the partitions, offsets, sizes and settings of a topic."""
        return await self._call(self._log.describe_topic, name)

    async def describe_topics(self, names: Iterable[str]) -> list[TopicInfo]:
        """Return the partitions, offsets, sizes and settings of several topics."""
        return await self._call(self._log.describe_topics, list(names))

    async def topic_settings(self, name: str) -> dict[str, Value]:
        """Return all settings of a topic, including defaults."""
        return await self._call(self._log.topic_settings, name)

    async def groups(self) -> list[str]:
        """Return the names of all groups."""
        return await self._call(self._log.groups)

    async def describe_group(self, group: str) -> GroupDescription:
        """Return the state and members of a group."""
        return await self._call(self._log.describe_group, group)

    async def committed_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        return await self._call(self._log.committed_offsets, group)

    # -- consumers -----------------------------------------------------------------------------

    def _opening_consumer(
        self, create: Callable[[], AnyConsumer], options: ConsumerOptions
    ) -> Opening[Consumer]:
        async def opened() -> Consumer:
            self.workers.check("log")
            iteration_timeout(options.consumer_timeout_ms)
            created = await self.workers.run(create, abandoned=lambda made: made.close())
            consumer = Consumer(self, cast(SteppedConsumer, created), options)
            self._consumers.add(consumer)
            self.waiting.group_changed(options.group)
            return consumer

        return Opening(opened)

    @property
    def longest_look_seconds(self) -> float:
        """How long poll(timeout_ms=0) can take; 0 means that reading the files once is enough."""
        return 0.0

    def run_step(
        self,
        work: Callable[[int], Step],
        left_seconds: float,
        done: Callable[[Step | Exception], None],
    ) -> None:
        """Run a consumer step in one of the next rounds, then call `done` in the event loop."""
        del left_seconds
        self.rounds.add(partial(work, 0), done)

    async def pause(self, interest: Interest, step: Step, seen: int, left_seconds: float) -> None:
        """Wait until it is worth looking for records again (waiting.py)."""
        seconds = min(left_seconds, recheck_seconds(is_member=step.is_member))
        await self.waiting.wait(interest, seen, seconds)

    # -- close ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Complete the sends in progress, close consumers and producers, and release the log.

        This method is idempotent. Tasks that wait for records get `ClosedError`. A task that is
        cancelled here still waits until the log is closed.
        """
        if self._closing is None:
            self.workers.check("log")
            self.workers.is_closing = True
            self._closing = self.workers.loop.create_task(self._close())
        else:
            self.workers.check_owner("log")
        await finish(self._closing)

    async def _close(self) -> None:
        try:
            await self._complete_sends()
            closings = [consumer.close() for consumer in list(self._consumers)]
            errors = await asyncio.gather(*closings, return_exceptions=True)
            await self.workers.idle()
            for error in filter(None, errors):
                raise error
        finally:
            try:
                await self.workers.run(self._log.close)
            finally:
                self.workers.shut_down()

    async def _complete_sends(self) -> None:
        """Wait for the sends that were queued before `close` was called."""


class AsyncOpenLog(AsyncReadableLog[OpenT]):
    """A log that can be read and changed."""

    def __init__(self, log: OpenT, workers: Workers) -> None:
        super().__init__(log, workers)
        self._shared: dict[tuple[object, ...], SharedQueue] = {}

    # -- topics --------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> TopicInfo:
        """Create a topic; `partitions` defaults to num.partitions."""
        return await self._call(self._log.create_topic, name, partitions, config)

    async def alter_topic(
        self,
        name: str,
        config: Mapping[str, object | None] | None = None,
        partitions: int | None = None,
    ) -> TopicInfo:
        """Change settings (None resets a setting to its default), and increase the number of
        partitions to `partitions` if given."""
        altered = await self._call(self._log.alter_topic, name, config, partitions)
        self.waiting.topics_changed()
        return altered

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        await self._call(self._log.delete_topic, name)
        self.waiting.topics_changed()

    async def delete_records(self, name: str, partition: int, before_offset: int) -> None:
        """Delete the records of a partition below an offset; the end offset deletes all."""
        await self._call(self._log.delete_records, name, partition, before_offset)

    # -- groups --------------------------------------------------------------------------------

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the committed offsets of a group that has no members."""
        await self._call(self._log.commit_offsets, group, dict(offsets))

    async def delete_group(self, group: str) -> None:
        """Delete a group that has no members, and its committed offsets."""
        await self._call(self._log.delete_group, group)

    # -- permissions and users -----------------------------------------------------------------

    async def acls(self, wanted: AclFilter = EVERY_ACL) -> list[Acl]:
        """Return the ACLs that a filter selects, by default all of them."""
        return await self._call(self._log.acls, wanted)

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Create ACLs; existing ACLs are kept."""
        await self._call(self._log.create_acls, list(acls))

    async def delete_acls(self, filters: Iterable[AclFilter | Acl]) -> list[Acl]:
        """Delete the ACLs that any of the filters selects, and return them."""
        return await self._call(self._log.delete_acls, list(filters))

    async def users(self) -> list[UserInfo]:
        """Return all users that can log in with a password, with their SCRAM mechanisms."""
        return await self._call(self._log.users)

    async def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = EVERY_MECHANISM,
        iterations: int = DEFAULT_ITERATIONS,
    ) -> None:
        """Create a user, or replace its password, for the given SCRAM mechanisms; credentials for
        other mechanisms are deleted."""
        await self._call(
            self._log.set_password,
            user,
            password,
            mechanisms=list(mechanisms),
            iterations=iterations,
        )

    async def delete_user(self, user: str) -> None:
        """Delete a user; raise `ResourceNotFoundError` if there is none with this name."""
        await self._call(self._log.delete_user, user)

    # -- producers -----------------------------------------------------------------------------

    def producer(
        self,
        acks: Acks = "all",
        partitioner: str = "murmur2",
        compression: str | None = None,
    ) -> Opening[Producer]:
        """Create a producer. Producers with the same arguments share their batches.

        The arguments are those of the synchronous log's `producer` method.
        """
        key = (acks, partitioner, compression)
        create = partial(self._log.producer, acks, partitioner, compression)

        async def opened() -> Producer:
            self.workers.check("log")
            shared = self._shared.get(key)
            if shared is None:
                shared = SharedQueue(self.workers.loop.create_task(self._create_queue(create)))
                self._shared[key] = shared
            shared.users += 1
            try:
                queue = await asyncio.shield(shared.creation)
            except BaseException:
                self._drop(key, shared)
                raise
            return Producer(self.workers, queue, partial(self._producer_closed, key, shared))

        return Opening(opened)

    async def _create_queue(self, create: Callable[[], AnyProducer]) -> SendQueue:
        producer = cast(SteppedProducer, await self.workers.run(create))
        return SendQueue(self.workers, producer, self.waiting.written)

    def _drop(self, key: tuple[object, ...], shared: SharedQueue) -> None:
        """Give up a task's share of a queue, because the task was cancelled or opening failed."""

        def close(creation: asyncio.Task[SendQueue]) -> None:
            if not creation.cancelled() and creation.exception() is None:
                self.workers.submit(creation.result().producer.close, ignore_outcome)

        if self._is_last(key, shared):
            shared.creation.add_done_callback(close)

    def _is_last(self, key: tuple[object, ...], shared: SharedQueue) -> bool:
        """Remove one user of a queue; return whether it was the last one."""
        shared.users -= 1
        if shared.users:
            return False
        if self._shared.get(key) is shared:
            del self._shared[key]
        return True

    async def _producer_closed(self, key: tuple[object, ...], shared: SharedQueue) -> None:
        if self._is_last(key, shared):
            await self.workers.run(shared.creation.result().producer.close)

    async def _complete_sends(self) -> None:
        for shared in list(self._shared.values()):
            with contextlib.suppress(StrandlogError):  # the task that opens the producer raises it
                queue = await asyncio.shield(shared.creation)
                await queue.call("", _nothing)


class SharedQueue:
    """The task that creates a send queue, and the number of producers that use the queue."""

    def __init__(self, creation: asyncio.Task[SendQueue]) -> None:
        self.creation = creation
        self.users = 0


def _nothing() -> None:
    """Do nothing: queued calls run in order, so this call ends after all earlier ones."""
