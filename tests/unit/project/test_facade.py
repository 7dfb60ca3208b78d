"""Listeners, clients and commands call methods of `Broker`, never the parts that it consists of."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.syntax_trees import nodes

SOURCE = Path(__file__).parents[3] / "src" / "strandlog"
LISTENERS_AND_CLIENTS = ("server", "client", "cli")
FACADE = (SOURCE / "broker" / "broker.py", *sorted((SOURCE / "broker" / "facade").glob("*.py")))
# Attributes that callers may use: values, and the audit log, which notes their logins.
VALUES = {"audit", "clock", "enforces_quotas", "is_closed", "metrics", "settings"}


def _assigned(path: Path) -> set[str]:
    """The attributes that the methods of a module assign to `self`."""
    return {
        target.attr
        for node in nodes(path)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    }


def _is_broker(node: ast.expr) -> bool:
    return ast.unparse(node).rpartition(".")[2] in {"broker", "_broker"}


def test_the_parts_of_the_broker_are_private() -> None:
    parts = set().union(*(_assigned(path) for path in FACADE)) - VALUES
    assert len(parts) > 10, "the search finds the parts"
    assert sorted(part for part in parts if not part.startswith("_")) == []


def test_listeners_and_clients_use_no_private_attribute_of_the_broker() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}"
        for package in LISTENERS_AND_CLIENTS
        for path in sorted((SOURCE / package).rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and _is_broker(node.value)
    ]
    assert found == []


def test_nothing_is_assigned_to_the_broker_after_its_construction() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}"
        for package in LISTENERS_AND_CLIENTS
        for path in sorted((SOURCE / package).rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and _is_broker(node.value)
    ]
    assert found == []


# Requests that reveal and change nothing, or whose caller has checked the permission.
UNCHECKED = {
    "append": "the caller calls `writable_topic`",
    "admit_fetch": "only counts",
    "append_all": "the caller calls `writable_topic`",
    "charge_fetch": "only counts",
    "charge_produce": "only counts",
    "charge_time": "only counts",
    "check_fetch": "only counts",
    "check_produce": "only counts",
    "check_time": "only counts",
    "begin_sasl": "the client has not authenticated yet",
    "check_password": "the client has not authenticated yet",
    "check_token": "the client has not authenticated yet",
    "fetch": "it calls `fetch_work`",
    "fetch_delay_ms": "only counts",
    "flush_wait": "only for the embedded library",
    "flush_waits": "only for the embedded library",
    "is_flushing": "only for the embedded library",
    "make_visible": "returns nothing",
    "max_fetch_bytes": "only counts",
    "mutation_delay_ms": "only counts",
    "schema_text": "the caller has read the schema",
    "stream_delay_ms": "only counts",
}
HELPERS = {"_audited", "_in_order"}  # they check nothing by themselves
CHECKS = ("self._access", "self._in_order(", "self._resolve(", "self._denial(", "_check_change(")


def _methods() -> dict[str, ast.FunctionDef]:
    """The methods of the facade that take a context, public and private, by name."""
    return {
        node.name: node
        for path in FACADE[1:]
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef)
        and any(argument.arg == "context" for argument in node.args.args)
    }


def _text_with_parts(name: str, methods: dict[str, ast.FunctionDef]) -> str:
    """The text of a method and of the private methods to which it passes its context."""
    text = ast.unparse(methods[name])
    parts = [each for each in methods if each.startswith("_") and f"self.{each}(context" in text]
    return text + "".join(ast.unparse(methods[each]) for each in parts if each not in HELPERS)


def test_every_request_checks_the_permission_of_the_client() -> None:
    unchecked = set()
    methods = _methods()
    for name in methods:
        text = _text_with_parts(name, methods)
        checks = any(check in text for check in CHECKS)
        if "_in_order(" in text and "self._access" not in text:
            checks = "context," in text.partition("_in_order(")[2]
        if not name.startswith("_") and not checks and "self.topic_names(context" not in text:
            unchecked.add(name)
    assert sorted(unchecked) == sorted(UNCHECKED)


# Requests that change nothing, or only what a client with data of its own changes all the time.
NOT_ADMINISTRATIVE = {
    *("acls", "authorized_operations", "check_access", "explain_access", "has_access"),
    "has_access_to_any_topic",
    *("check_new_topic", "has_topic", "partition_count", "partition_state", "partition_states"),
    *("producers", "size_from", "table_state", "topic", "topic_names", "topics", "writable_topic"),
    *("describe_group", "fetch_offsets", "groups", "groups_with_offsets", "member_count"),
    "subscribed_groups",
    *("heartbeat", "join_group", "leave_group", "sync_group"),
    *("append", "append_all", "produce", "produce_all", "produce_work", "record_checks"),
    *("epoch_end_offset", "fetch", "fetch_work", "file_position", "list_offset", "read"),
    *("flush_wait", "flush_waits", "is_flushing", "make_visible"),
    *("add_offsets_to_transaction", "add_partitions_to_transaction", "commit_transaction_offsets"),
    *("check_transaction_partition", "end_transaction", "find_coordinator", "init_producer_id"),
    *("describe_transaction", "transactions"),
    *("admit_fetch", "charge_fetch", "charge_produce", "charge_time", "check_fetch"),
    *(
        "check_produce",
        "check_time",
        "client_quotas",
        "fetch_delay_ms",
        "max_fetch_bytes",
        "mutation_delay_ms",
        "stream_delay_ms",
    ),
    *("check_schema", "find_schema", "schema_by_guid", "schema_by_id", "schema_config"),
    *("schema_mode", "schema_referrers", "schema_subjects", "schema_text", "schema_uses"),
    "value_schema",
    *("schema_version", "schema_versions", "schemas"),
    # Logins: the listener that knows the client notes them.
    *("begin_sasl", "check_password", "check_token", "describe_users"),
}


def test_every_administrative_request_is_in_the_audit_log() -> None:
    methods = _methods()
    public = {name for name in methods if not name.startswith("_")}
    assert public >= NOT_ADMINISTRATIVE
    silent = [
        name
        for name in sorted(public - NOT_ADMINISTRATIVE)
        if "self._audited(context" not in " ".join(ast.unparse(methods[name]).split())
        and "self.audit." not in ast.unparse(methods[name])
    ]
    assert not silent, "call self._audited, or add the request to NOT_ADMINISTRATIVE"
