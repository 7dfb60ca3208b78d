"""What programs may rely on: the names, the tree of errors, the types."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import grpc
import pytest
from tests.support.syntax_trees import nodes

import strandlog
from strandlog import errors

PUBLIC_NAMES = [
    "open",
    "read",
    "connect",
    "Log",
    "ReadOnlyLog",
    "RemoteLog",
    "Producer",
    "Consumer",
    "Record",
    "RecordMetadata",
    "TopicPartition",
    "TopicInfo",
    "PartitionInfo",
    "UserInfo",
    "Acl",
    "AclFilter",
    "Operation",
    "PatternType",
    "PermissionType",
    "ResourceType",
    "AuthenticationError",
    "AuthorizationError",
    "StrandlogError",
    "AlreadyOpenError",
    "ClosedError",
    "CorruptSegmentError",
    "GroupError",
    "InvalidGroupError",
    "InvalidPartitionsError",
    "InvalidTopicError",
    "MessageTooLargeError",
    "NotOwnerError",
    "OffsetOutOfRangeError",
    "SkippedOffsets",
    "StorageError",
    "TopicExistsError",
    "TopicInUseError",
    "TopicNotFoundError",
    "UndecodableBatchError",
    "UnknownLayoutError",
    "UnreachableError",
]


def test_the_public_names_are_these() -> None:
    """A name that is dropped or changed breaks programs; one that is added is a promise."""
    assert sorted(strandlog.__all__) == sorted(PUBLIC_NAMES)
    assert len(set(strandlog.__all__)) == len(strandlog.__all__)
    for name in strandlog.__all__:
        assert getattr(strandlog, name) is not None


def test_public_classes_have_their_methods() -> None:
    verbs: dict[type, str] = {
        strandlog.Log: "create_topic topics describe_topic alter_topic delete_topic compact "
        "enforce_retention delete_records producer consumer groups describe_group "
        "committed_offsets commit_offsets delete_group acls create_acls delete_acls users "
        "set_password delete_user problems "
        "run_maintenance flush close",
        strandlog.Producer: "send send_batch send_arrow flush close",
        strandlog.Consumer: "poll poll_arrow commit committed position seek seek_all "
        "seek_to_time assign assignment group close",
        strandlog.ReadOnlyLog: "topics describe_topic describe_topics topic_settings groups "
        "describe_group committed_offsets consumer close",
        strandlog.RemoteLog: "create_topic topics describe_topic alter_topic delete_topic "
        "delete_records producer consumer groups describe_group committed_offsets "
        "commit_offsets delete_group acls create_acls delete_acls users set_password "
        "delete_user close",
    }
    for owner, names in verbs.items():
        missing = [name for name in names.split() if not hasattr(owner, name)]
        assert not missing, f"{owner.__name__} lost {missing}"
    for owner in verbs:
        assert hasattr(owner, "__enter__") and hasattr(owner, "__exit__")


def test_records_have_the_fields_of_the_interface() -> None:
    assert strandlog.Record._fields == (
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
    )
    assert strandlog.RecordMetadata._fields == ("topic", "partition", "offset", "timestamp")
    assert str(strandlog.TopicPartition("t", 3)) == "t-3"


def test_public_names_have_docstrings() -> None:
    for name in strandlog.__all__:
        thing = getattr(strandlog, name)
        if inspect.isclass(thing) and issubclass(thing, Exception):
            continue  # the tree in errors.py says it for all of them
        assert inspect.getdoc(thing), name
        if thing in (strandlog.Log, strandlog.Producer, strandlog.Consumer, strandlog.ReadOnlyLog):
            silent = [
                verb
                for verb, value in vars(thing).items()
                if not verb.startswith("_") and inspect.isfunction(value) and not value.__doc__
            ]
            assert len(silent) <= 5, f"{name}: {silent}"


# -- the tree of errors ------------------------------------------------------------------------


def drawn_tree() -> dict[str, tuple[str, bool]]:
    """Name → (parent, whether it is marked as retriable), as errors.py draws it."""
    found: dict[str, tuple[str, bool]] = {}
    branch: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    (?P<lead>[│├└─ ]*)(?P<name>\w+Error)\b(?P<rest>.*)$", line)
        if match is None:
            continue
        depth = len(match["lead"]) // 4
        branch[depth:] = [match["name"]]
        parent = branch[depth - 1] if depth else "Exception"
        found[match["name"]] = (parent, "(retriable)" in match["rest"])
    return found


def defined_errors() -> dict[str, type[errors.StrandlogError]]:
    return {
        name: thing
        for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, errors.StrandlogError)
    }


def test_the_error_tree_in_the_docstring_matches_the_classes() -> None:
    real = {
        name: (error.__bases__[0].__name__, error.retriable)
        for name, error in defined_errors().items()
    }
    assert drawn_tree() == real
    assert len(real) > 40


def test_every_leaf_of_the_tree_says_what_to_do() -> None:
    parents = {parent for parent, _ in drawn_tree().values()}
    silent = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    [│├└─ ]+(\w+Error)(.*)$", line)
        if match and match[1] not in parents and not match[2].strip():
            silent.append(match[1])
    assert not silent


def test_every_public_error_is_of_the_tree() -> None:
    tree = defined_errors()
    for name in strandlog.__all__:
        if name.endswith("Error"):
            assert getattr(strandlog, name) is tree[name]


def test_kafka_codes_exist_in_kafka() -> None:
    with warnings.catch_warnings():  # it reads its schemas in a dated way
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import errors as kafka_errors

    known = {getattr(error, "errno", None) for error in vars(kafka_errors).values()}
    for name, error in defined_errors().items():
        assert error.codes.kafka in known | {-1, 81, 82}, name


MAELSTROM_CODES = {10, 11, 12, 13, 14, 20, 21, 22}
# Exceptions outside errors.py, with the reason why they are no errors of the log.
PRIVATE_EXCEPTIONS = {
    "HttpError": "a status of HTTP itself: no such route, wrong content type",
    "TooLargeToParseError": "caught where it is raised",
    "PeerTooSlowError": "ends a connection, never becomes a response",
    "_TooComplexError": "becomes the answer that schemas are incompatible",
    "_SegmentGoneError": "makes a read start again",
    "SegmentReplacedError": "makes a read start again",
    "NotKafkaError": "a finding of the doctor",
    "UnusualError": "switches to the slower parser",
    "BrokenJsonError": "goes into _corrupt as the reason",
    "InexactError": "becomes a TableSchemaError that names the column",
    "MisfitError": "goes into _corrupt as the reason",
    "RetriableBrokerError": "makes the wire client try again",
    "WrongListenerError": "an UnreachableError that the wire client does not retry",
    "RefusedHandshakeError": "an UnreachableError that the start of a job does not retry",
    "_ExtendedError": "makes a round of a table sync start again",
    "_Stopped": "ends the wait of a scheduled pipeline",
    "PowerCut": "ends a simulated process; nothing may catch it",
}


def test_every_error_class_lives_in_errors_py() -> None:
    root = Path(strandlog.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        if path != Path(errors.__file__ or ""):
            for node in nodes(path):
                if isinstance(node, ast.ClassDef) and any(map(_is_exception, node.bases)):
                    found.add(node.name)
    assert not found - PRIVATE_EXCEPTIONS.keys(), "declare them in errors.py, with their codes"
    assert found >= PRIVATE_EXCEPTIONS.keys(), "no longer there: take them off the list"


def _is_exception(base: ast.expr) -> bool:
    name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
    return name.endswith(("Error", "Exception"))


def test_every_error_has_valid_codes_on_all_protocols() -> None:
    for name, error in defined_errors().items():
        assert 400 <= error.codes.http < 600, name
        assert hasattr(grpc.StatusCode, error.codes.grpc), name
        assert error.codes.grpc not in ("OK", "UNKNOWN"), name
        assert error.codes.node in MAELSTROM_CODES, name
        if error.retriable and error.codes.http >= 500:
            assert error.codes.http in (503, 507), name


def test_damage_on_disk_has_a_status_on_every_protocol() -> None:
    for damage in (errors.CorruptSegmentError, errors.UndecodableBatchError):
        assert damage.codes == errors.Codes(2, 422, "DATA_LOSS", 13)


def test_kafka_codes_become_the_errors_that_brokers_mean() -> None:
    meant = {
        1: errors.OffsetOutOfRangeError,
        2: errors.CorruptRecordError,
        3: errors.TopicNotFoundError,
        5: errors.LeaderNotAvailableError,
        10: errors.MessageTooLargeError,
        25: errors.UnknownMemberError,
        40: errors.SettingError,
        42: errors.InvalidRequestError,
        44: errors.PolicyViolationError,
        56: errors.StorageError,
        58: errors.AuthenticationError,
    }
    for code, kind in meant.items():
        error = errors.error_for_kafka_code(code, "text")
        assert type(error) is kind
        assert str(error) == "text"
    assert type(errors.error_for_kafka_code(7, "text")) is errors.RemoteError


def test_every_error_is_a_strandlog_error() -> None:
    for error in defined_errors().values():
        assert issubclass(error, strandlog.StrandlogError)
        assert not issubclass(error, AssertionError | OSError | ValueError | KeyError)


# -- the package -------------------------------------------------------------------------------


def test_types_are_shipped() -> None:
    assert (Path(strandlog.__file__).parent / "py.typed").exists()


@pytest.mark.slow
def test_a_program_is_checked_against_the_types(tmp_path: Path) -> None:
    """mypy --strict over a program as the interface shows it; wrong types are found."""
    program = tmp_path / "program.py"
    program.write_text(
        """import strandlog

with strandlog.open("./data") as log:
    log.create_topic("orders", partitions=3, config={"retention.ms": "86400000"})
    with log.producer(acks="all", partitioner="murmur2") as producer:
        meta = producer.send("orders", b"v", key=b"k", headers={"h": b"x"})
        offset: int = meta.offset
        metas = producer.send_batch("orders", [(b"k1", b"v1"), {"value": b"v2", "partition": 2}])
        first: strandlog.RecordMetadata = metas[0]
        producer.flush()
    with log.consumer(
        ["orders"], group="billing", auto_offset_reset="earliest", auto_commit=False
    ) as consumer:
        for record in consumer.poll(max_records=500, timeout_ms=0):
            value: bytes | None = record.value
        consumer.commit()
        consumer.seek_all(0)
        consumer.assign([("orders", 1)])
    log.compact("orders")
log.producer(acks="some")  # wrong
producer.send("orders", "text")  # wrong
consumer.poll(max_records="many")  # wrong
"""
    )
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\n")
    source = Path(strandlog.__file__).parent.parent
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(config)),
            *("--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent", str(program)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"MYPYPATH": str(source), "PATH": ""},
    )
    lines = [line for line in checked.stdout.splitlines() if "error:" in line]
    wrong = [
        number
        for number, line in enumerate(program.read_text().splitlines(), start=1)
        if line.endswith("# wrong")
    ]
    numbers = [int(line.split(":")[1]) for line in lines]
    assert numbers == wrong, checked.stdout + checked.stderr


def test_importing_the_library_imports_little() -> None:
    """No extra, no event loop, no framework, and no other module of its own."""
    script = "import sys; before = set(sys.modules); import strandlog; "
    script += "print(*sorted(set(sys.modules) - before))"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = found.stdout.split()
    assert [name for name in loaded if name.startswith("strandlog")] == ["strandlog"]
    others = {name.partition(".")[0] for name in loaded} - {"strandlog"}
    assert others <= sys.stdlib_module_names
    assert not others & {"asyncio", "dataclasses", "inspect", "json", "logging", "ssl", "uuid"}


def test_the_version_is_the_packages() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", strandlog.__version__)
    try:
        installed = importlib.metadata.version("strandlog")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed")
    assert strandlog.__version__ == installed
