"""Limits on the HTTP listener: requests, pages of records, pipeline reports and history."""

from __future__ import annotations

from strandlog.config.limits.fixed_limit import KIB, MIB, fixed_limit

HTTP_MAX_HEAD_BYTES = fixed_limit(
    16 * KIB,
    "HTTP: size of the request line and headers",
    above="400",
    why="browsers send less",
)
HTTP_MAX_HEAD_LINES = fixed_limit(
    100,
    "HTTP: lines in a request before its body",
    above="400",
    why="browsers send about twenty",
)
HTTP_SMALL_BODY_BYTES = fixed_limit(
    256 * KIB,
    "HTTP: size of the body of a request to the JSON API that does not contain records",
    above="413",
    why="such a request contains only names and settings",
)
HTTP_HEALTH_CONNECTIONS = fixed_limit(
    32,
    "HTTP: connections above http.max.connections, for health checks only",
    above="further ones are closed",
    why="a supervisor and a load balancer need one each",
)
HTTP_STALL_SECONDS = fixed_limit(
    15,
    "HTTP on Linux: time until the client's kernel must acknowledge sent data, in seconds",
    above="the connection is closed",
    why="a live client acknowledges within milliseconds",
)
HTTP_PRODUCE_MAX_RECORDS = fixed_limit(
    10_000,
    "HTTP: records in one produce request",
    above="422",
    why="clients can send several requests",
)
HTTP_PAGE_MAX_RECORDS = fixed_limit(
    1000,
    "HTTP: records on one page",
    above="400",
    why="clients can request the next page with a cursor",
)
HTTP_PAGE_MAX_BYTES = fixed_limit(
    16 * MIB,
    "HTTP: size of the keys, values and headers on one page, as JSON",
    above="further keys, values and headers are truncated",
    why="clients can request the next page with a cursor",
)
HTTP_PAGE_MAX_PROBLEMS = fixed_limit(
    100,
    "HTTP: problems listed on one page",
    above="further ones are not listed",
    why="the first few are enough",
)
HTTP_JSON_VALUE_BYTES = fixed_limit(
    MIB,
    "HTTP: size of a value that is returned as JSON",
    above="the value is returned as text",
    why="parsing a larger value takes too long",
)
HTTP_PARSED_VALUE_BYTES = fixed_limit(
    8 * MIB,
    "HTTP: size of a value that a record search parses to follow a JSON path",
    above="the page reports that the value was not searched",
    why="parsing a larger value takes too long",
)
HTTP_PARSED_VALUE_ITEMS = fixed_limit(
    50_000,
    "HTTP: JSON items in a value that a record search parses to follow a JSON path",
    above="the page reports that the value was not searched",
    why="parsing a larger value takes too long",
)
HTTP_PATH_MAX_STEPS = fixed_limit(
    50,
    "HTTP: steps in the JSON path of a record search",
    above="400",
    why="values are rarely nested that deeply",
)
HTTP_CONCURRENT_READS = fixed_limit(
    2,
    "HTTP: pages that are read concurrently",
    above="a request waits",
    why="each read competes with the event loop for CPU time",
)
HTTP_LIVE_MAX_GROUPS = fixed_limit(
    200,
    "HTTP: groups in a lag event",
    above="groups with less lag are left out",
    why="bounds the size of an event",
)
HTTP_STATUS_MAX_PROBLEMS = fixed_limit(
    200,
    "HTTP: problems listed in the broker's status",
    above="further ones are not listed",
    why="the first few are enough",
)
HTTP_READY_MAX_REASONS = fixed_limit(
    20,
    "HTTP: failed partitions listed by /readyz",
    above="further ones are counted",
    why="the first few are enough",
)
HTTP_MAX_PIPELINES = fixed_limit(
    64,
    "HTTP: pipelines that report their progress",
    above="the pipeline with the oldest report is removed",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_MAX_QUERIES = fixed_limit(
    32,
    "HTTP: queries per pipeline",
    above="422 if a single report exceeds it; otherwise the oldest query is removed",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_MAX_POINTS = fixed_limit(
    240,
    "HTTP: progress reports kept per query",
    above="the oldest is removed",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_NAME_CHARACTERS = fixed_limit(
    200,
    "HTTP: characters in the name of a pipeline or query",
    above="400 or 422",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_ERROR_CHARACTERS = fixed_limit(
    2000,
    "HTTP: characters in the error message of a pipeline",
    above="422; strandlog's reporter truncates it",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_URL_CHARACTERS = fixed_limit(
    500,
    "HTTP: characters in the URL of a pipeline's Spark UI",
    above="422; strandlog's reporter omits it",
    why="reports are kept in memory, and any client can send them",
)
HTTP_PIPELINE_WATERMARK_CHARACTERS = fixed_limit(
    100,
    "HTTP: characters in the watermark of a query",
    above="422; strandlog's reporter truncates it",
    why="reports are kept in memory, and any client can send them",
)
HISTORY_MAX_TOPICS = fixed_limit(
    200,
    "HTTP: topics in one sample of the history",
    above="the topics with the highest rates are kept",
    why="charts show the busiest ones",
)
HISTORY_MAX_GROUPS = fixed_limit(
    50,
    "HTTP: groups in one sample of the history",
    above="the groups with the highest lag are kept",
    why="charts show the ones that lag most",
)
