"""Limits on users, credentials, ACLs, quotas, logins, tokens and audit events."""

from __future__ import annotations

from strandlog.config.limits.fixed_limit import KIB, fixed_limit

ACL_MAX_TEXT_CHARACTERS = fixed_limit(
    1024,
    "characters in the resource name, principal or host of an ACL",
    above="an error",
    why="no name that an ACL can match is longer",
)
USER_NAME_MAX_CHARACTERS = fixed_limit(
    255,
    "characters in a user name",
    above="an error",
    why="names appear in every ACL, log line and response about a user",
)
SUBJECT_MAX_CHARACTERS = fixed_limit(
    4096,
    "characters in a user name that is derived from the subject of a client certificate",
    above="the client is rejected",
    why="subjects are longer than other names and appear in every log line about the user",
)
PASSWORD_MAX_BYTES = fixed_limit(
    1024,
    "size of a password that the broker stores, as UTF-8",
    above="an error",
    why="a longer password is no harder to guess",
)
SALT_MAX_BYTES = fixed_limit(
    1024,
    "size of the salt in a SCRAM credential that a client sends",
    above="an error",
    why="the broker sends it to everyone who tries to log in",
)
SCRAM_MAX_ITERATIONS = fixed_limit(
    16_384,
    "iterations of a SCRAM credential",
    above="an error",
    why="Kafka's maximum",
)
SCRAM_MAX_MESSAGE_BYTES = fixed_limit(
    4 * KIB,
    "size of a SCRAM message from a client",
    above="the login fails",
    why="the first message is held in memory before the client has authenticated",
)
QUOTA_MAX_NAME_CHARACTERS = fixed_limit(
    1024,
    "characters in the name of a user or client id that has a quota",
    above="an error; clients with a longer id share one allowance per quota",
    why="clients choose their ids, and long ones could exhaust memory",
)
MAX_CONNECTIONS_OVER_QUOTA = fixed_limit(
    1000,
    "connections per listener that wait to be closed because their address exceeded its quota",
    above="further ones are closed immediately",
    why="each holds a file descriptor for at most quota.window.size.seconds",
)
QUOTA_REQUEST_MAX_ENTITIES = fixed_limit(
    1000,
    "Kafka: entities in an AlterClientQuotas request",
    above="an error for each further entity",
    why="all changes of a request are written in one step of the event loop",
)
AUTHORIZATION_MAX_CHARACTERS = fixed_limit(
    8 * KIB,
    "HTTP and gRPC: characters in an Authorization header",
    above="the login fails",
    why="it is held in memory before the client has authenticated, and tokens are shorter",
)
LOGINS_MAX_CONCURRENT = fixed_limit(
    1,
    "HTTP and gRPC: passwords and tokens that are verified concurrently",
    above="further ones wait",
    why="verification takes milliseconds of CPU time in a thread that other requests also need",
)
LOGINS_MAX_WAITING = fixed_limit(
    100,
    "HTTP and gRPC: requests that wait until their password or token is verified",
    above="429, RESOURCE_EXHAUSTED",
    why="the last of them already waits for about a second",
)
LOGINS_MAX_REMEMBERED = fixed_limit(
    1_000,
    "HTTP and gRPC: verified passwords and tokens that are cached for a minute",
    above="the oldest is verified again",
    why="verifying one takes milliseconds",
)
LOGINS_MAX_FAILING_ADDRESSES = fixed_limit(
    10_000,
    "HTTP and gRPC: client addresses whose failed logins are counted",
    above="the address whose last attempt is oldest is forgotten",
    why="each takes memory, and failed logins cost an attacker nothing",
)
AUDIT_MAX_TEXT_CHARACTERS = fixed_limit(
    500,
    "characters of a name in the audit log",
    above="the name is truncated",
    why="names come from clients, which must not be able to inflate the log",
)
AUDIT_MAX_DETAILS = fixed_limit(
    50,
    "changed settings listed in one event of the audit log",
    above="the event states how many more there are",
    why="names come from clients, which must not be able to inflate the log",
)
AUDIT_MAX_EVENTS_PER_CLIENT = fixed_limit(
    100,
    "distinct denials and failures of one client that the audit log lists per minute",
    above="further ones share one line, which states their number",
    why="a flood of requests must not displace older events",
)
AUDIT_MAX_DISTINCT_EVENTS = fixed_limit(
    5_000,
    "distinct denials, or failures of one kind, that the audit log lists per minute",
    above="further ones share one line, which states their number",
    why="a flood of requests must not displace older events",
)
AUDIT_MAX_QUEUED_EVENTS = fixed_limit(
    20_000,
    "audit events that wait to be written to disk",
    above="further ones are lost and counted (`audit_events_lost`)",
    why="memory must stay bounded, and no request waits for the audit log",
)
TOKEN_MAX_CHARACTERS = fixed_limit(
    16 * KIB,
    "characters in a bearer token",
    above="the login fails",
    why="no provider issues longer tokens, which would not fit into an HTTP header",
)
JWKS_MAX_BYTES = fixed_limit(
    256 * KIB,
    "size of the document with the keys for bearer tokens (JWKS)",
    above="the document is not used; the previously loaded keys remain in use",
    why="a provider has a few keys of 1 KiB each",
)
JWKS_MAX_KEYS = fixed_limit(
    100,
    "keys in a JWKS document",
    above="the document is not used; the previously loaded keys remain in use",
    why="a provider has only a few keys",
)
AUTHORIZER_MAX_CACHED_DECISIONS = fixed_limit(
    100_000,
    "decisions of the authorizer that are cached",
    above="the cache is cleared",
    why="a decision takes microseconds, so the size hardly matters",
)
