"""Kafka's partition assignors: range, roundrobin, sticky, cooperative-sticky. Pure functions.

    name                what it does
    range               each topic on its own: its sorted subscribers get neighbouring partitions,
                        the first ones one more; so topics with equal counts are co-partitioned
    roundrobin          all partitions, sorted, assigned in turn to the sorted members
    sticky              balanced, and each member keeps what it has as far as balance allows
    cooperative-sticky  sticky, but a partition that moves has no owner in this round: its old owner
                        gives it up first, and the next round assigns it

`range` and `roundrobin` assign exactly as Kafka's Java assignors without racks do, so that
clients of both kinds agree. Members are sorted as Kafka sorts them: static ones first by their
instance id, then the others by their member id, both in UTF-16 order.

Invariants for every input: every member has an entry; a member gets partitions of topics it
subscribed to and no others; no partition has two owners; with the exception of
cooperative-sticky, every partition of a subscribed topic has an owner. With equal subscriptions
sticky counts differ by at most one; with unequal ones no single move would level two members
further.

A claim to an owned partition counts if it is of the newest generation among its claimants and no
other member of that generation claims it; older and contested claims come from members that missed
a rebalance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from strandlog.errors import DataError, InconsistentProtocolError
from strandlog.model import TopicPartition
from strandlog.protocol.consumer_protocol import (
    NO_GENERATION,
    Subscription,
    decode_sticky_user_data,
)

Assignments = dict[str, list[TopicPartition]]


class MemberSubscription(NamedTuple):
    """What an assignor knows of a member."""

    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    group_instance_id: str | None = None


Members = Mapping[str, MemberSubscription]
Assignor = Callable[[Members, Mapping[str, int]], Assignments]


def assign(name: str, members: Members, partitions: Mapping[str, int]) -> Assignments:
    """The partitions of each member; `partitions` is the number of them by topic."""
    assignor = ASSIGNORS.get(name)
    if assignor is None:
        known = ", ".join(ASSIGNORS)
        raise InconsistentProtocolError(f"there is no assignor {name!r}; choose one of {known}")
    return assignor(members, partitions)


def member_subscription(
    subscription: Subscription, group_instance_id: str | None = None
) -> MemberSubscription:
    """The assignor's view of a decoded subscription.

    Eager Java clients give up their partitions before they join, so their "sticky" assignor
    puts what they had into the user data; it stands in when nothing is owned openly.
    """
    owned, generation = subscription.owned_partitions, subscription.generation
    if not owned and subscription.user_data:
        try:
            owned, generation = decode_sticky_user_data(subscription.user_data)
        except DataError:
            owned = ()  # another assignor's user data
    return MemberSubscription(subscription.topics, owned, generation, group_instance_id)


def assign_range(members: Members, partitions: Mapping[str, int]) -> Assignments:
    result: Assignments = {member_id: [] for member_id in members}
    subscribers = _subscribers(members)
    for topic in _topics(members, partitions):
        share, extra = divmod(partitions[topic], len(subscribers[topic]))
        start = 0
        for index, member_id in enumerate(subscribers[topic]):
            end = start + share + (1 if index < extra else 0)
            result[member_id] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return result


def assign_round_robin(members: Members, partitions: Mapping[str, int]) -> Assignments:
    result: Assignments = {member_id: [] for member_id in members}
    order = _sorted_members(members)
    topics_of = {member_id: set(members[member_id].topics) for member_id in order}
    turn = 0
    for partition in _all_partitions(members, partitions):
        while partition.topic not in topics_of[order[turn % len(order)]]:
            turn += 1
        result[order[turn % len(order)]].append(partition)
        turn += 1
    return result


def assign_sticky(members: Members, partitions: Mapping[str, int]) -> Assignments:
    """Keeps valid claims, assigns the rest, then balances."""
    result: Assignments = {member_id: [] for member_id in _sorted_members(members)}
    every = _all_partitions(members, partitions)
    owners = _owners(members, set(every))
    if len({frozenset(member.topics) for member in members.values()}) == 1:
        _keep_within_quota(result, owners, len(every))
    else:
        for partition, member_id in owners.items():
            result[member_id].append(partition)
    kept = {partition for held in result.values() for partition in held}
    subscribers = _subscribers(members)
    # Partitions with few candidates first: the others can go anywhere later.
    unassigned = sorted(
        (partition for partition in every if partition not in kept),
        key=lambda partition: len(subscribers[partition.topic]),
    )
    for partition in unassigned:
        least = min(subscribers[partition.topic], key=lambda member_id: len(result[member_id]))
        result[least].append(partition)
    _level(result, subscribers, set(unassigned))
    for held in result.values():
        held.sort(key=_partition_order)
    return result


def assign_cooperative_sticky(members: Members, partitions: Mapping[str, int]) -> Assignments:
    result = assign_sticky(members, partitions)
    owners = _owners(members, set(_all_partitions(members, partitions)))
    claimants: dict[TopicPartition, set[str]] = defaultdict(set)
    for member_id, member in members.items():
        for partition in member.owned_partitions:
            claimants[partition].add(member_id)
    for member_id, held in result.items():
        # A claim that does not count in the balance still means that a member may be reading.
        result[member_id] = [
            partition
            for partition in held
            if owners.get(partition) == member_id or not claimants[partition] - {member_id}
        ]
    return result


ASSIGNORS: dict[str, Assignor] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperative_sticky,
}


def _keep_within_quota(
    result: Assignments, owners: Mapping[TopicPartition, str], total: int
) -> None:
    """Each member keeps up to its part of `total`; the remainder lets some keep one more."""
    share, extra = divmod(total, len(result))
    claimed: Assignments = defaultdict(list)
    for partition, member_id in owners.items():
        claimed[member_id].append(partition)
    for member_id, held in result.items():
        quota = share
        if extra > 0 and len(claimed[member_id]) > share:
            quota, extra = share + 1, extra - 1
        held.extend(claimed[member_id][:quota])


def _level(
    result: Assignments, subscribers: Mapping[str, list[str]], loose: set[TopicPartition]
) -> None:
    """Moves partitions from long lists to short ones while a move makes the two more equal.

    Every move lowers the sum of the squares of the counts, so this ends. Partitions that had no
    owner (`loose`) move before those that a member owns.
    """

    def count(member_id: str) -> int:
        return len(result[member_id])

    moved = True
    while moved and max(map(count, result), default=0) - min(map(count, result), default=0) > 1:
        moved = False
        for giver in sorted(result, key=lambda member_id: -count(member_id)):
            takers = {
                topic: min(subscribers[topic], key=count)
                for topic in dict.fromkeys(partition.topic for partition in result[giver])
            }
            for partition in sorted(result[giver], key=lambda held: held not in loose):
                taker = takers[partition.topic]
                if count(giver) > count(taker) + 1:
                    result[giver].remove(partition)
                    result[taker].append(partition)
                    takers[partition.topic] = min(subscribers[partition.topic], key=count)
                    moved = True


def _owners(members: Members, existing: set[TopicPartition]) -> dict[TopicPartition, str]:
    """The valid owner of each partition that has one, in the order of partitions."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
    for member_id, member in members.items():
        topics = set(member.topics)
        for partition in set(member.owned_partitions):
            if partition in existing and partition.topic in topics:
                claims[partition].append((member.generation, member_id))
    owners: dict[TopicPartition, str] = {}
    for partition in sorted(claims, key=_partition_order):
        newest = max(claims[partition])[0]
        claimants = [member_id for claim, member_id in claims[partition] if claim == newest]
        if len(claimants) == 1:
            owners[partition] = claimants[0]
    return owners


def _topics(members: Members, partitions: Mapping[str, int]) -> list[str]:
    """Subscribed topics that have partitions, in Kafka's order."""
    wanted = {topic for member in members.values() for topic in member.topics}
    return sorted((topic for topic in wanted if partitions.get(topic, 0) > 0), key=_java_order)


def _all_partitions(members: Members, partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in _topics(members, partitions)
        for number in range(partitions[topic])
    ]


def _subscribers(members: Members) -> dict[str, list[str]]:
    """The sorted members by topic."""
    result: dict[str, list[str]] = defaultdict(list)
    for member_id in _sorted_members(members):
        for topic in dict.fromkeys(members[member_id].topics):
            result[topic].append(member_id)
    return result


def _sorted_members(members: Members) -> list[str]:
    def order(member_id: str) -> tuple[bool, bytes, bytes]:
        instance = members[member_id].group_instance_id
        return instance is None, _java_order(instance or ""), _java_order(member_id)

    return sorted(members, key=order)


def _java_order(text: str) -> bytes:
    """Java compares UTF-16 units, Python code points; they differ beyond the basic plane."""
    return text.encode("utf-16-be", "surrogatepass")


def _partition_order(partition: TopicPartition) -> tuple[bytes, int]:
    return _java_order(partition.topic), partition.partition
