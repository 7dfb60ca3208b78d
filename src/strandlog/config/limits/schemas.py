"""Limits on the schema registry, and on values decoded with its schemas."""

from __future__ import annotations

from strandlog.config.limits.fixed_limit import KIB, MIB, fixed_limit

HTTP_DECODED_VALUE_BYTES = fixed_limit(
    64 * KIB,
    "HTTP: size of a key or value that is decoded with its schema",
    above="the key or value is shown as bytes",
    why="decoding takes up to a microsecond per byte",
)
HTTP_DECODE_PAGE_MS = fixed_limit(
    500,
    "HTTP: time to decode the keys and values of one response with their schemas, in ms",
    above="the remaining keys and values are shown as bytes",
    why="a page may have a thousand large values",
)
HTTP_DECODE_MAX_SCHEMAS = fixed_limit(
    100,
    "HTTP: schemas used to decode the keys and values of one response",
    above="keys and values with other schemas are not decoded",
    why="each schema may have to be compiled",
)
SCHEMA_MAX_IDS = fixed_limit(
    100_000,
    "schemas in the registry",
    above="42205",
    why="they are kept in memory",
)
SCHEMA_MAX_TOTAL_CHARACTERS = fixed_limit(
    256 * MIB,
    "characters of all schemas, and of the metadata and rules of all versions",
    above="42205",
    why="they are kept in memory",
)
SCHEMA_MAX_TOTAL_VERSIONS = fixed_limit(
    200_000,
    "versions of all subjects, including deleted ones",
    above="42205",
    why="they are kept in memory",
)
SCHEMA_MAX_VERSIONS = fixed_limit(
    1_000,
    "versions of a subject, including deleted ones",
    above="42205",
    why="a transitive check compares a new version with all of them",
)
SCHEMA_MAX_REFERENCES = fixed_limit(
    100,
    "schemas that a schema refers to, directly or through others",
    above="42201",
    why="each of them is parsed with the schema",
)
SCHEMA_MAX_REFERENCED_CHARACTERS = fixed_limit(
    2 * MIB,
    "characters of all schemas that a schema refers to",
    above="42201",
    why="they are parsed with the schema, which takes seconds",
)
SCHEMA_MAX_REFERENCE_DEPTH = fixed_limit(
    20,
    "schemas in a chain of references",
    above="42201",
    why="schemas are rarely layered more deeply",
)
SCHEMA_MAX_SUBJECT_CHARACTERS = fixed_limit(
    1_000,
    "characters in a subject name",
    above="42208",
    why="topic names have at most 249 characters",
)
SCHEMA_MAX_REQUEST_BYTES = fixed_limit(
    2 * MIB,
    "HTTP: size of a request to the schema registry",
    above="413",
    why="the largest schema fits, even with escaped characters",
)
SCHEMA_MAX_EXTRA_BYTES = fixed_limit(
    64 * KIB,
    "size of the metadata, or of the rules, of a schema",
    above="42209",
    why="they are kept in memory",
)
SCHEMA_MAX_COMPARISONS = fixed_limit(
    50_000,
    "comparisons between parts of two JSON or Avro schemas",
    above="the schemas are reported as incompatible",
    why="combinations such as unions multiply the number of comparisons",
)
SCHEMA_LIST_MAX_SCHEMAS = fixed_limit(
    1_000,
    "schemas in one response to GET /schemas",
    above="further ones are returned for a larger `offset`",
    why="Confluent's registry has the same limit by default",
)
SCHEMA_MAX_MESSAGES = fixed_limit(
    20,
    "reasons listed for an invalid or incompatible schema",
    above="further ones are not listed",
    why="the first few are enough",
)
SCHEMA_MAX_NAMED_SYMBOLS = fixed_limit(
    20,
    "missing enum symbols named in the reason for an incompatible schema",
    above="further ones are not named",
    why="the first few are enough",
)
SCHEMA_MAX_DEPTH = fixed_limit(
    200,
    "levels of nesting in a schema",
    above="42201",
    why="comparing deeper ones could overflow the stack",
)
