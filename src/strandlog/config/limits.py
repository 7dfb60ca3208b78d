"""Fixed limits that a client can notice, as an error, a shorter response or a delay.

A limit that an operator might want to change is a setting (`config/tables`). The limits here are
fixed, either because a larger value would only cost memory or time and no client needs one, or
because a file format or protocol defines the limit:

    NAME = _limit(value, "what is limited", above="what happens above it", why="why it is fixed")

`FIXED_LIMITS` contains all of them, and the reference page for settings lists them. Chunk sizes,
intervals and thresholds that only affect speed are defined in the modules that use them.
"""

from __future__ import annotations

from typing import NamedTuple

KIB = 1024
MIB = 1024 * KIB


class FixedLimit(NamedTuple):
    """A limit, its meaning, what happens above it, and why it is not a setting."""

    value: int
    meaning: str
    above: str
    why: str


FIXED_LIMITS: list[FixedLimit] = []


def _limit(value: int, meaning: str, *, above: str, why: str) -> int:
    FIXED_LIMITS.append(FixedLimit(value, meaning, above, why))
    return value


# -- records, topics and groups --------------------------------------------------------------------

MAX_RECORD_HEADERS = _limit(
    100_000,
    "headers in a record",
    above="an error; a stored record with more is reported as corrupt, except in Arrow tables",
    why="a 2-byte header in a batch takes hundreds of bytes in memory",
)
MAX_BATCH_HEADERS = _limit(
    4_000_000,
    "headers in a batch whose records are decoded all at once",
    above="the batch is reported as corrupt, except in Arrow tables",
    why="a 2-byte header in a batch takes hundreds of bytes in memory",
)
MAX_REPORTED_RECORDS = _limit(
    100,
    "invalid records listed in one error",
    above="further ones are not listed",
    why="the first few are enough to find the cause",
)
MAX_TOPIC_NAME_CHARACTERS = _limit(
    249,
    "characters in a topic name",
    above="an error",
    why="Kafka's limit; leaves room for a partition number and a suffix in a file name",
)
MAX_GROUP_NAME_CHARACTERS = _limit(
    255,
    "characters in a group name",
    above="an error",
    why="names are keys in memory and in the log",
)
MAX_MEMBER_ASSIGNORS = _limit(
    100,
    "assignors that a group member lists",
    above="an error",
    why="clients usually list one to three",
)

# -- Kafka -----------------------------------------------------------------------------------------

MAX_STRING_BYTES = _limit(
    32_767,
    "Kafka: bytes in a string",
    above="the connection is closed",
    why="the protocol's int16 length; compact strings have the same limit",
)
MAX_TAGGED_FIELDS = _limit(
    100,
    "Kafka: tagged fields in a structure",
    above="the connection is closed",
    why="no structure in Kafka has more than nine",
)
MAX_ARRAY_ELEMENTS = _limit(
    1_000_000,
    "Kafka: elements in an array of a request",
    above="the connection is closed",
    why="a 2-byte element in a request takes hundreds of bytes in memory",
)
MAX_REQUESTS_IN_FLIGHT = _limit(
    64,
    "Kafka: requests in progress on a connection",
    above="the broker stops reading from the connection",
    why="clients use 5 by default",
)
MAX_REQUESTS_BEFORE_AUTHENTICATION = _limit(
    20,
    "Kafka: requests on a SASL listener before the client has authenticated",
    above="the broker closes the connection",
    why="a login takes four requests",
)
UNAUTHENTICATED_MAX_BYTES = _limit(
    16 * MIB,
    "Kafka: total size of requests from clients that have not authenticated",
    above="further requests wait, and stalled connections are closed",
    why="a login takes less than a kilobyte",
)
LOGIN_THROTTLE_MAX_KEYS = _limit(
    10_000,
    "Kafka: addresses, and pairs of address and user, whose logins are tracked",
    above="the oldest are no longer tracked",
    why="a client can try any user name and use many addresses",
)
LARGE_REQUESTS_MAX_BYTES = _limit(
    2 * MIB,
    "Kafka: total size of large requests (at least 32 KiB, except Produce) decoded at once",
    above="the request waits",
    why="a decoded request can take up dozens of times its encoded size in memory",
)
FETCH_MAX_WAIT_MS = _limit(
    60_000,
    "Kafka: time that a Fetch waits for records, in ms",
    above="an empty response; the consumer fetches again",
    why="a client that vanished without closing its connection is noticed only by a response",
)
MAX_WAITING_PARTITIONS = _limit(
    100_000,
    "Kafka: partitions in all waiting Fetch requests for more than 32 partitions",
    above="such a Fetch gets its response without waiting",
    why="each waiting partition costs memory and slows down appends",
)
MAX_RESOURCE_SETTINGS = _limit(
    1000,
    "Kafka: settings of one topic or broker in a request",
    above="an error",
    why="no resource has that many settings",
)
DESCRIBE_GROUPS_MAX_BYTES = _limit(
    16 * MIB,
    "Kafka: size of the member data in a DescribeGroups response",
    above="an error for each further group",
    why="the client can describe the group in a separate request",
)
OFFSET_FETCH_MAX_ROWS = _limit(
    100_000,
    "Kafka: offsets in an OffsetFetch response",
    above="an error for each further group",
    why="the client can fetch the offsets of that group in a separate request",
)
RESPONSE_MAX_BYTES = _limit(
    2**31 - 1 - KIB,
    "Kafka: size of a response",
    above="the connection is closed",
    why="the protocol's int32 length",
)

# -- access ----------------------------------------------------------------------------------------

ACL_MAX_TEXT_CHARACTERS = _limit(
    1024,
    "characters in the resource name, principal or host of an ACL",
    above="an error",
    why="no name that an ACL can match is longer",
)
USER_NAME_MAX_CHARACTERS = _limit(
    255,
    "characters in a user name",
    above="an error",
    why="names appear in every ACL, log line and response about a user",
)
SUBJECT_MAX_CHARACTERS = _limit(
    4096,
    "characters in a user name that is derived from the subject of a client certificate",
    above="the client is rejected",
    why="subjects are longer than other names and appear in every log line about the user",
)
PASSWORD_MAX_BYTES = _limit(
    1024,
    "size of a password that the broker stores, as UTF-8",
    above="an error",
    why="a longer password is no harder to guess",
)
SALT_MAX_BYTES = _limit(
    1024,
    "size of the salt in a SCRAM credential that a client sends",
    above="an error",
    why="the broker sends it to everyone who tries to log in",
)
SCRAM_MAX_ITERATIONS = _limit(
    16_384,
    "iterations of a SCRAM credential",
    above="an error",
    why="Kafka's maximum",
)
SCRAM_MAX_MESSAGE_BYTES = _limit(
    4 * KIB,
    "size of a SCRAM message from a client",
    above="the login fails",
    why="the first message is held in memory before the client has authenticated",
)
QUOTA_MAX_NAME_CHARACTERS = _limit(
    1024,
    "characters in the name of a user or client id that has a quota",
    above="an error; clients with a longer id share one allowance per quota",
    why="clients choose their ids, and long ones could exhaust memory",
)
MAX_CONNECTIONS_OVER_QUOTA = _limit(
    1000,
    "connections per listener that wait to be closed because their address exceeded its quota",
    above="further ones are closed at once",
    why="each holds a file descriptor for at most quota.window.size.seconds",
)
QUOTA_REQUEST_MAX_ENTITIES = _limit(
    1000,
    "Kafka: entities in an AlterClientQuotas request",
    above="an error for each further entity",
    why="all changes of a request are written in one step of the event loop",
)
AUTHORIZATION_MAX_CHARACTERS = _limit(
    8 * KIB,
    "HTTP and gRPC: characters in an Authorization header",
    above="the login fails",
    why="it is held in memory before the client has authenticated, and tokens are shorter",
)
LOGINS_MAX_CONCURRENT = _limit(
    1,
    "HTTP and gRPC: passwords and tokens that are verified concurrently",
    above="further ones wait",
    why="verification takes milliseconds of CPU time in a thread that other requests also need",
)
LOGINS_MAX_WAITING = _limit(
    100,
    "HTTP and gRPC: requests that wait until their password or token is verified",
    above="429, RESOURCE_EXHAUSTED",
    why="the last of them already waits for about a second",
)
LOGINS_MAX_REMEMBERED = _limit(
    1_000,
    "HTTP and gRPC: verified passwords and tokens that are cached for a minute",
    above="the oldest is verified again",
    why="verifying one takes milliseconds",
)
LOGINS_MAX_FAILING_ADDRESSES = _limit(
    10_000,
    "HTTP and gRPC: client addresses whose failed logins are counted",
    above="the address whose last attempt is oldest is forgotten",
    why="each takes memory, and failed logins cost an attacker nothing",
)
AUDIT_MAX_TEXT_CHARACTERS = _limit(
    500,
    "characters of a name in the audit log",
    above="the name is truncated",
    why="names come from clients, which must not be able to inflate the log",
)
AUDIT_MAX_DETAILS = _limit(
    50,
    "changed settings listed in one event of the audit log",
    above="the event states how many more there are",
    why="names come from clients, which must not be able to inflate the log",
)
AUDIT_MAX_EVENTS_PER_CLIENT = _limit(
    100,
    "distinct denials and failures of one client that the audit log lists per minute",
    above="further ones share one line, which states their number",
    why="a flood of requests must not displace older events",
)
AUDIT_MAX_DISTINCT_EVENTS = _limit(
    5_000,
    "distinct denials, or failures of one kind, that the audit log lists per minute",
    above="further ones share one line, which states their number",
    why="a flood of requests must not displace older events",
)
AUDIT_MAX_QUEUED_EVENTS = _limit(
    20_000,
    "audit events that wait to be written to disk",
    above="further ones are lost and counted (`audit_events_lost`)",
    why="memory must stay bounded, and no request waits for the audit log",
)
TOKEN_MAX_CHARACTERS = _limit(
    16 * KIB,
    "characters in a bearer token",
    above="the login fails",
    why="no provider issues longer tokens, which would not fit into an HTTP header",
)
JWKS_MAX_BYTES = _limit(
    256 * KIB,
    "size of the document with the keys for bearer tokens (JWKS)",
    above="the document is not used; the previously loaded keys remain in use",
    why="a provider has a few keys of 1 KiB each",
)
JWKS_MAX_KEYS = _limit(
    100,
    "keys in a JWKS document",
    above="the document is not used; the previously loaded keys remain in use",
    why="a provider has only a few keys",
)
AUTHORIZER_MAX_CACHED_DECISIONS = _limit(
    100_000,
    "decisions of the authorizer that are cached",
    above="the cache is cleared",
    why="a decision takes microseconds, so the size hardly matters",
)

# -- schemas ---------------------------------------------------------------------------------------

HTTP_DECODED_VALUE_BYTES = _limit(
    64 * KIB,
    "HTTP: size of a key or value that is decoded with its schema",
    above="the key or value is shown as bytes",
    why="decoding takes up to a microsecond per byte",
)
HTTP_DECODE_PAGE_MS = _limit(
    500,
    "HTTP: time to decode the keys and values of one response with their schemas, in ms",
    above="the remaining keys and values are shown as bytes",
    why="a page may have a thousand large values",
)
HTTP_DECODE_MAX_SCHEMAS = _limit(
    100,
    "HTTP: schemas used to decode the keys and values of one response",
    above="keys and values with other schemas are not decoded",
    why="each schema may have to be compiled",
)
SCHEMA_MAX_IDS = _limit(
    100_000,
    "schemas in the registry",
    above="42205",
    why="they are kept in memory",
)
SCHEMA_MAX_TOTAL_VERSIONS = _limit(
    200_000,
    "versions of all subjects, including deleted ones",
    above="42205",
    why="they are kept in memory",
)
SCHEMA_MAX_VERSIONS = _limit(
    1_000,
    "versions of a subject, including deleted ones",
    above="42205",
    why="a transitive check compares a new version with all of them",
)
SCHEMA_MAX_REFERENCES = _limit(
    100,
    "schemas that a schema refers to, directly or through others",
    above="42201",
    why="each of them is parsed with the schema",
)
SCHEMA_MAX_REFERENCE_DEPTH = _limit(
    20,
    "schemas in a chain of references",
    above="42201",
    why="schemas are rarely layered more deeply",
)
SCHEMA_MAX_SUBJECT_CHARACTERS = _limit(
    1_000,
    "characters in a subject name",
    above="42208",
    why="topic names have at most 249 characters",
)
SCHEMA_MAX_REQUEST_BYTES = _limit(
    2 * MIB,
    "HTTP: size of a request to the schema registry",
    above="413",
    why="the largest schema fits, even with escaped characters",
)
SCHEMA_MAX_EXTRA_BYTES = _limit(
    64 * KIB,
    "size of the metadata, or of the rules, of a schema",
    above="42209",
    why="they are kept in memory",
)
SCHEMA_MAX_COMPARISONS = _limit(
    50_000,
    "comparisons between parts of two JSON or Avro schemas",
    above="the schemas are reported as incompatible",
    why="combinations such as unions multiply the number of comparisons",
)
SCHEMA_LIST_MAX_SCHEMAS = _limit(
    1_000,
    "schemas in one response to GET /schemas",
    above="further ones are returned for a larger `offset`",
    why="Confluent's registry has the same limit by default",
)
SCHEMA_MAX_MESSAGES = _limit(
    20,
    "reasons listed for an invalid or incompatible schema",
    above="further ones are not listed",
    why="the first few are enough",
)
SCHEMA_MAX_DEPTH = _limit(
    200,
    "levels of nesting in a schema",
    above="42201",
    why="comparing deeper ones could overflow the stack",
)

# -- gRPC ------------------------------------------------------------------------------------------

GRPC_REMEMBERED_CERTIFICATES = _limit(
    1_000,
    "gRPC: client certificates whose principal is cached",
    above="the oldest certificate is parsed again",
    why="each takes memory, and parsing one takes a tenth of a millisecond",
)
GRPC_SMALL_REQUEST_BYTES = _limit(
    64 * KIB,
    "gRPC: size of a request other than Produce",
    above="INVALID_ARGUMENT",
    why="such a request contains only names and numbers",
)
GRPC_MAX_METADATA_BYTES = _limit(
    16 * KIB,
    "gRPC: size of the metadata of a call",
    above="RESOURCE_EXHAUSTED",
    why="methods use only the credentials, which are shorter",
)
GRPC_CONSUME_MESSAGE_BYTES = _limit(
    MIB,
    "gRPC: size of the records in a Consume message, unless a single record is larger",
    above="the records are sent in several messages",
    why="a larger message is not faster",
)
GRPC_HANDSHAKE_TIMEOUT_MS = _limit(
    10_000,
    "gRPC without TLS: time for the HTTP/2 handshake, in ms",
    above="the connection is closed",
    why="clients complete it within milliseconds",
)
GRPC_MAX_NAME_BYTES = _limit(
    KIB,
    "gRPC: size of a health or reflection request",
    above="INVALID_ARGUMENT",
    why="it contains only one name",
)
GRPC_REFLECTION_STREAMS = _limit(
    4,
    "gRPC: open reflection streams",
    above="further ones wait, and a silent stream is closed",
    why="only developers use reflection, not programs",
)

# -- TLS -------------------------------------------------------------------------------------------

TLS_MAX_HANDSHAKES = _limit(
    1024,
    "connections of a Kafka or HTTP listener that have not finished their TLS handshake",
    above="the oldest one is closed",
    why="a client finishes within a second; more indicate an attack or a network failure",
)
TLS_STORE_MAX_BYTES = _limit(
    16 * MIB,
    "size of a PEM file with a key or certificates",
    above="an error at startup; a changed file is not loaded",
    why="a file with all public CAs has 0.2 MB",
)

# -- HTTP ------------------------------------------------------------------------------------------

HTTP_MAX_HEAD_BYTES = _limit(
    16 * KIB,
    "HTTP: size of the request line and headers",
    above="400",
    why="browsers send less",
)
HTTP_MAX_HEAD_LINES = _limit(
    100,
    "HTTP: lines in a request before its body",
    above="400",
    why="browsers send about twenty",
)
HTTP_SMALL_BODY_BYTES = _limit(
    256 * KIB,
    "HTTP: size of the body of a request to the JSON API that does not contain records",
    above="413",
    why="such a request contains only names and settings",
)
HTTP_HEALTH_CONNECTIONS = _limit(
    32,
    "HTTP: connections above http.max.connections, for health checks only",
    above="further ones are closed",
    why="a supervisor and a load balancer need one each",
)
HTTP_STALL_SECONDS = _limit(
    15,
    "HTTP on Linux: time until the client's kernel must acknowledge sent data, in seconds",
    above="the connection is closed",
    why="a live client acknowledges within milliseconds",
)
HTTP_PRODUCE_MAX_RECORDS = _limit(
    10_000,
    "HTTP: records in one produce request",
    above="422",
    why="clients can send several requests",
)
HTTP_PAGE_MAX_RECORDS = _limit(
    1000,
    "HTTP: records on one page",
    above="400",
    why="clients can request the next page with a cursor",
)
HTTP_PAGE_MAX_BYTES = _limit(
    16 * MIB,
    "HTTP: size of the keys, values and headers on one page, as JSON",
    above="further keys, values and headers are truncated",
    why="clients can request the next page with a cursor",
)
HTTP_PAGE_MAX_PROBLEMS = _limit(
    100,
    "HTTP: problems listed on one page",
    above="further ones are not listed",
    why="the first few are enough",
)
HTTP_JSON_VALUE_BYTES = _limit(
    MIB,
    "HTTP: size of a value that is returned as JSON",
    above="the value is returned as text",
    why="parsing a larger value takes too long",
)
HTTP_PARSED_VALUE_BYTES = _limit(
    8 * MIB,
    "HTTP: size of a value in which a record search follows a JSON path",
    above="the page reports that the value was not searched",
    why="parsing a larger value takes too long",
)
HTTP_PARSED_VALUE_ITEMS = _limit(
    50_000,
    "HTTP: JSON items in a value in which a record search follows a JSON path",
    above="the page reports that the value was not searched",
    why="parsing a larger value takes too long",
)
HTTP_PATH_MAX_STEPS = _limit(
    50,
    "HTTP: steps in the JSON path of a record search",
    above="400",
    why="values are rarely nested that deeply",
)
HTTP_CONCURRENT_READS = _limit(
    2,
    "HTTP: pages that are read concurrently",
    above="a request waits",
    why="each read competes with the event loop for CPU time",
)
HTTP_LIVE_MAX_GROUPS = _limit(
    200,
    "HTTP: groups in a lag event",
    above="groups with less lag are left out",
    why="bounds the size of an event",
)
HTTP_STATUS_MAX_PROBLEMS = _limit(
    200,
    "HTTP: problems listed in the broker's status",
    above="further ones are not listed",
    why="the first few are enough",
)
HTTP_READY_MAX_REASONS = _limit(
    20,
    "HTTP: failed partitions listed by /readyz",
    above="further ones are not listed",
    why="the first few are enough",
)
HTTP_MAX_PIPELINES = _limit(
    64,
    "HTTP: pipelines that report their progress",
    above="the pipeline with the oldest report is removed",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_MAX_QUERIES = _limit(
    32,
    "HTTP: queries per pipeline",
    above="422 if a single report exceeds it; otherwise the oldest query is removed",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_MAX_POINTS = _limit(
    240,
    "HTTP: progress reports kept per query",
    above="the oldest is removed",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_NAME_CHARACTERS = _limit(
    200,
    "HTTP: characters in the name of a pipeline or query",
    above="400 or 422",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_ERROR_CHARACTERS = _limit(
    2000,
    "HTTP: characters in the error message of a pipeline",
    above="422; strandlog's reporter truncates it",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_URL_CHARACTERS = _limit(
    500,
    "HTTP: characters in the URL of a pipeline's Spark UI",
    above="422; strandlog's reporter omits it",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_WATERMARK_CHARACTERS = _limit(
    100,
    "HTTP: characters in the watermark of a query",
    above="422; strandlog's reporter truncates it",
    why="reports are kept in memory, and any client can send them",
)

HISTORY_MAX_TOPICS = _limit(
    200,
    "HTTP: topics in one sample of the history",
    above="the topics with the highest rates are kept",
    why="charts show the busiest ones",
)
HISTORY_MAX_GROUPS = _limit(
    50,
    "HTTP: groups in one sample of the history",
    above="the groups with the highest lag are kept",
    why="charts show the ones that lag most",
)

# -- JSON-lines node -------------------------------------------------------------------------------

NODE_MAX_LINE_BYTES = _limit(
    8 * MIB,
    "node: size of a line",
    above="an error",
    why="each line is held in memory",
)
NODE_MAX_DEPTH = _limit(
    100,
    "node: levels of nesting in a message",
    above="an error",
    why="deeper nesting could overflow the stack of Python's JSON encoder",
)
NODE_MAX_PARTITIONS = _limit(
    256,
    "node: partitions of a topic (appends create them on demand)",
    above="an error",
    why="creating a partition takes a folder and two fsyncs; more could exceed the peer's timeout",
)
NODE_POLL_MAX_BYTES = _limit(
    MIB,
    "node: size of the messages in a reply to poll",
    above="the next poll returns the rest",
    why="each reply is held in memory",
)
NODE_MAX_ERROR_CHARACTERS = _limit(
    500,
    "node: characters in an error text",
    above="the text is truncated",
    why="a reply must not repeat a large request",
)
