"""Limits on the requests and responses of Kafka listeners."""

from __future__ import annotations

from strandlog.config.limits.fixed_limit import KIB, MIB, fixed_limit

MAX_STRING_BYTES = fixed_limit(
    32_767,
    "Kafka: bytes in a string",
    above="the connection is closed",
    why="the protocol's int16 length; compact strings have the same limit",
)
MAX_TAGGED_FIELDS = fixed_limit(
    100,
    "Kafka: tagged fields in a structure",
    above="the connection is closed",
    why="no structure in Kafka has more than nine",
)
MAX_ARRAY_ELEMENTS = fixed_limit(
    1_000_000,
    "Kafka: elements in an array of a request",
    above="the connection is closed",
    why="a 2-byte element in a request takes hundreds of bytes in memory",
)
MAX_REQUESTS_IN_FLIGHT = fixed_limit(
    64,
    "Kafka: requests in progress on a connection",
    above="the broker stops reading from the connection",
    why="clients use 5 by default",
)
MAX_REQUESTS_BEFORE_AUTHENTICATION = fixed_limit(
    20,
    "Kafka: requests on a SASL listener before the client has authenticated",
    above="the broker closes the connection",
    why="a login takes four requests",
)
UNAUTHENTICATED_MAX_BYTES = fixed_limit(
    16 * MIB,
    "Kafka: total size of requests from clients that have not authenticated",
    above="further requests wait, and stalled connections are closed",
    why="a login takes less than a kilobyte",
)
LOGIN_THROTTLE_MAX_KEYS = fixed_limit(
    10_000,
    "Kafka: addresses, and pairs of address and user, whose logins are tracked",
    above="the oldest are no longer tracked",
    why="a client can try any user name and use many addresses",
)
LARGE_REQUESTS_MAX_BYTES = fixed_limit(
    2 * MIB,
    "Kafka: total size of large requests (at least 32 KiB, except Produce) decoded concurrently",
    above="the request waits",
    why="a decoded request can take up dozens of times its encoded size in memory",
)
FETCH_MAX_WAIT_MS = fixed_limit(
    60_000,
    "Kafka: time that a Fetch waits for records, in ms",
    above="an empty response; the consumer fetches again",
    why="a client that vanished without closing its connection is noticed only by a response",
)
MAX_WAITING_PARTITIONS = fixed_limit(
    100_000,
    "Kafka: partitions in all waiting Fetch requests for more than 32 partitions",
    above="such a Fetch gets its response without waiting",
    why="each waiting partition costs memory and slows down appends",
)
MAX_RESOURCE_SETTINGS = fixed_limit(
    1000,
    "Kafka: settings of one topic or broker in a request",
    above="an error",
    why="no resource has that many settings",
)
DESCRIBE_GROUPS_MAX_BYTES = fixed_limit(
    16 * MIB,
    "Kafka: size of the member data in a DescribeGroups response",
    above="an error for each further group",
    why="the client can describe the group in a separate request",
)
OFFSET_FETCH_MAX_ROWS = fixed_limit(
    100_000,
    "Kafka: offsets in an OffsetFetch response",
    above="an error for each further group",
    why="the client can fetch the offsets of that group in a separate request",
)
RESPONSE_MAX_BYTES = fixed_limit(
    2**31 - 1 - KIB,
    "Kafka: size of a response",
    above="the connection is closed",
    why="the protocol's int32 length",
)
