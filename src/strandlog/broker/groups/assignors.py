"""Kafka's partition assignors as pure functions.

    name                behaviour
    range               handles each topic separately: its sorted subscribers get contiguous ranges,
                        and the first ones get one extra partition if the division has a remainder,
                        so topics with equal partition counts and subscribers are co-partitioned
    roundrobin          deals all partitions, sorted, to the sorted members in rotation
    sticky              balances the members; each keeps as many of its partitions as balance allows
    cooperative-sticky  like sticky, but a partition that moves stays unassigned in this round: its
                        old owner revokes it, and the next round assigns it to the new owner

`range` and `roundrobin` assign exactly as Kafka's Java assignors do without rack awareness, so
Java and strandlog clients agree. Members are sorted as in Kafka: static members first, by instance
id, then dynamic members by member id, both in UTF-16 order.

The following invariants hold for every input. Every member has an entry. A member only gets
partitions of topics it subscribes to. No partition has two owners. Except with cooperative-sticky,
every partition of a subscribed topic has an owner. If all subscriptions are equal, the numbers of
partitions that `sticky` gives to the members differ by at most one; otherwise, no single move would
improve the balance of two members.

A member's claim to own a partition is valid if it has the newest generation among all claims to
that partition and no other member claims the partition with the same generation. Older and
contested claims come from members that missed a rebalance. A claim to a partition of a topic that
the member does not subscribe to is ignored.
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
    """The properties of a member that assignors use."""

    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    group_instance_id: str | None = None


Members = Mapping[str, MemberSubscription]
Assignor = Callable[[Members, Mapping[str, int]], Assignments]


def assign(name: str, members: Members, partitions: Mapping[str, int]) -> Assignments:
    """Return the partitions of each member; `partitions` maps each topic to its partition count."""
    assignor = ASSIGNORS.get(name)
    if assignor is None:
        known = ", ".join(ASSIGNORS)
        raise InconsistentProtocolError(f"there is no assignor {name!r}; choose one of {known}")
    return assignor(members, partitions)


def member_subscription(
    subscription: Subscription, group_instance_id: str | None = None
) -> MemberSubscription:
    """Convert a decoded subscription to the form that assignors use.

    Eager Java clients revoke their partitions before they join, so their "sticky" assignor puts
    the previously owned partitions into the user data. These are used if the subscription itself
    lists no owned partitions.
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
    """Keep the partitions with a valid owner, assign the rest, then balance the members."""
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
    # Assign partitions with few subscribers first: the others are easier to assign later.
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
        # Even a member whose claim is not valid may still be reading the partition.
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
    """Let each member keep its partitions up to an equal share of `total`, rounded down; if there
    is a remainder, some members may keep one more."""
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
    """Move partitions from members with more to members with fewer, to balance the counts.

    Every move reduces the sum of the squared counts, so the loop terminates. Partitions that had
    no owner (`loose`) are moved before the others.
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
    """Return the valid owner of each partition that has one, in partition order."""
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
    """Return the subscribed topics that have partitions, in Kafka's order."""
    wanted = {topic for member in members.values() for topic in member.topics}
    return sorted((topic for topic in wanted if partitions.get(topic, 0) > 0), key=_java_order)


def _all_partitions(members: Members, partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in _topics(members, partitions)
        for number in range(partitions[topic])
    ]


def _subscribers(members: Members) -> dict[str, list[str]]:
    """Return the sorted subscribers of each topic."""
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
    """Return a sort key for Java's string order.

    Java compares UTF-16 code units and Python compares code points, so they order
    characters outside the Basic Multilingual Plane differently.
    """
    return text.encode("utf-16-be", "surrogatepass")


def _partition_order(partition: TopicPartition) -> tuple[bytes, int]:
    return _java_order(partition.topic), partition.partition
