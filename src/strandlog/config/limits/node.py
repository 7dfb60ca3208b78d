"""Limits on the lines and topics of a JSON-lines node."""

from __future__ import annotations

from strandlog.config.limits.fixed_limit import MIB, fixed_limit

NODE_MAX_LINE_BYTES = fixed_limit(
    8 * MIB,
    "node: size of a line",
    above="an error",
    why="each line is held in memory",
)
NODE_MAX_DEPTH = fixed_limit(
    100,
    "node: levels of nesting in a message",
    above="an error",
    why="deeper nesting could overflow the stack of Python's JSON encoder",
)
NODE_MAX_PARTITIONS = fixed_limit(
    256,
    "node: partitions of a topic (appends create them on demand)",
    above="an error",
    why="creating a partition takes a folder and two fsyncs; more could exceed the peer's timeout",
)
NODE_POLL_MAX_BYTES = fixed_limit(
    MIB,
    "node: size of the messages in a reply to poll",
    above="the next poll returns the rest",
    why="each reply is held in memory",
)
NODE_MAX_ERROR_CHARACTERS = fixed_limit(
    500,
    "node: characters in an error text",
    above="the text is truncated",
    why="a reply must not repeat a large request",
)
