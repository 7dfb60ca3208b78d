"""Users and logins of a broker: requests, storage, restarts and damage."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.broker.access.access import SECURITY_TOPIC
from strandlog.broker.access.sasl import Identity, SaslStep
from strandlog.broker.access.scram import ScramMechanism, credential_of, salted_password
from strandlog.broker.access.users import CredentialDeletion, CredentialUpsertion
from strandlog.broker.broker import Broker
from strandlog.broker.context import ANONYMOUS, OWNER, Principal, RequestContext
from strandlog.client.wire.sasl import tokens
from strandlog.config.limits.access import (
    PASSWORD_MAX_BYTES,
    SALT_MAX_BYTES,
    USER_NAME_MAX_CHARACTERS,
)
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.errors import (
    AuthenticationError,
    ClusterAuthorizationError,
    DiskFullError,
    PolicyViolationError,
    ResourceNotFoundError,
    StrandlogError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from strandlog.protocol.security_records import (
    CredentialKey,
    CredentialValue,
    encode_credential,
    encode_credential_key,
)
from strandlog.storage.work import run_inline
from strandlog.testing.clock import FakeClock
from strandlog.testing.disk.faults import Step
from strandlog.testing.disk.files import SimulatedFiles

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
OWNED = RequestContext(OWNER)
CLIENT = RequestContext(ANONYMOUS, client_host="127.0.0.1")
LOG = f"data/{SECURITY_TOPIC}-0/{0:020d}.log"
MIB = 1024 * 1024
INVALID = "Authentication failed: Invalid username or password"
ALL_MECHANISMS = "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN"


def open_broker(
    disk: SimulatedFiles, settings: dict[str, str] | None = None, *, keeps_reserve: bool = False
) -> Broker:
    ids, numbers = itertools.count(1), itertools.count(1)
    chosen = BROKER_SETTINGS.parse({"sasl.enabled.mechanisms": ALL_MECHANISMS, **(settings or {})})
    return Broker(
        "data",
        disk,
        FakeClock(),
        lambda: UUID(int=next(ids)),
        broker_settings(chosen),
        random_bytes=lambda size: next(numbers).to_bytes(size),
        keeps_reserve=keeps_reserve,
    )


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles()


@pytest.fixture
def broker(disk: SimulatedFiles) -> Iterator[Broker]:
    found = open_broker(disk)
    yield found
    found.close()


def set_password(
    broker: Broker,
    user: str,
    password: str,
    mechanisms: tuple[ScramMechanism, ...] = tuple(ScramMechanism),
    context: RequestContext = OWNED,
) -> None:
    run_inline(broker.set_password(context, user, password, mechanisms)).result()


def logs_in(broker: Broker, user: str, password: str) -> bool:
    try:
        identity = run_inline(broker.check_password(CLIENT, user, password))
    except AuthenticationError as error:
        assert str(error) == INVALID
        return False
    assert identity == Identity(Principal("User", user), None)
    return True


def scram(broker: Broker, mechanism: ScramMechanism, user: str, password: str) -> bool:
    exchange = broker.begin_sasl(CLIENT, mechanism.sasl_name)
    client = tokens(mechanism.sasl_name, user, password)
    try:
        first = run_inline(exchange.respond(next(client)))
        step = run_inline(exchange.respond(client.send(first.answer)))
    except AuthenticationError:
        return False
    return step.identity is not None


def plain(broker: Broker, token: bytes) -> SaslStep:
    return run_inline(broker.begin_sasl(CLIENT, "PLAIN").respond(token))


def users(broker: Broker) -> dict[str, list[int]]:
    found = run_inline(broker.describe_users(OWNED, None))
    return {each.name: [int(key) for key in each.iterations] for each in found}


def upsertion(
    user: str, mechanism: int = 1, iterations: int = 4096, password: str = "pw"
) -> CredentialUpsertion:
    kind = SHA_512 if mechanism == SHA_512 else SHA_256
    salted = salted_password(kind, password, b"salt", iterations)
    return CredentialUpsertion(user, mechanism, iterations, b"salt", salted)


def alter(broker: Broker, *changes: CredentialDeletion | CredentialUpsertion) -> dict[str, int]:
    """Change users; the code of each one's error."""
    result = broker.alter_users(
        OWNED,
        [each for each in changes if isinstance(each, CredentialDeletion)],
        [each for each in changes if isinstance(each, CredentialUpsertion)],
    ).result()
    return {user: 0 if error is None else error.kafka_code for user, error in result.items()}


# -- logins ----------------------------------------------------------------------------------------


def test_a_user_logs_in_with_every_mechanism(broker: Broker) -> None:
    set_password(broker, "alice", "wonder")
    assert logs_in(broker, "alice", "wonder")
    for mechanism in ScramMechanism:
        assert scram(broker, mechanism, "alice", "wonder")
        assert not scram(broker, mechanism, "alice", "wander")
        assert not scram(broker, mechanism, "bob", "wonder")
    step = plain(broker, b"\0alice\0wonder")
    assert step == SaslStep(b"", Identity(Principal("User", "alice")))
    assert plain(broker, b"alice\0alice\0wonder").identity is not None


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "Wonder"), ("Alice", "wonder"), ("bob", "wonder"), ("alice", "wonder\0"), ("", "")],
)
def test_a_wrong_user_or_password_fails_with_one_message(
    broker: Broker, user: str, password: str
) -> None:
    set_password(broker, "alice", "wonder")
    assert not logs_in(broker, user, password)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0wonder", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0wonder\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0alice\0won\0der\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0wonder", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0alice\0wander", INVALID),
        (b"\0bob\0wonder", INVALID),
        (b"\0*\0wonder", INVALID),
        (b"\0ANONYMOUS\0wonder", INVALID),
        (b"\0ali\x01ce\0wonder", INVALID),
        (b"\0ali\xffce\0wonder", "Invalid SASL/PLAIN response: it is not UTF-8"),
        (
            b"admin\0alice\0wonder",
            "Authentication failed: Client requested an authorization id that is different from "
            "username",
        ),
        (b"admin\0alice\0wander", INVALID),
    ],
)
def test_a_plain_token_fails_with_the_message_of_kafka(
    broker: Broker, token: bytes, message: str
) -> None:
    set_password(broker, "alice", "wonder")
    with pytest.raises(AuthenticationError) as caught:
        plain(broker, token)
    assert str(caught.value) == message


def test_a_plain_exchange_takes_one_token(broker: Broker) -> None:
    set_password(broker, "alice", "wonder")
    exchange = broker.begin_sasl(CLIENT, "PLAIN")
    with pytest.raises(AuthenticationError):
        run_inline(exchange.respond(b"\0alice\0wander"))
    with pytest.raises(AuthenticationError):
        run_inline(exchange.respond(b"\0alice\0wonder"))


def test_only_enabled_mechanisms_are_offered(disk: SimulatedFiles) -> None:
    broker = open_broker(disk, {"sasl.enabled.mechanisms": "SCRAM-SHA-512"})
    assert broker.sasl_mechanisms == ("SCRAM-SHA-512",)
    for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-1", "scram-sha-512", "GSSAPI", ""):
        with pytest.raises(UnsupportedSaslMechanismError, match="SCRAM-SHA-512"):
            broker.begin_sasl(CLIENT, name)
    broker.close()


def test_a_user_deleted_while_its_password_is_checked_does_not_log_in(broker: Broker) -> None:
    set_password(broker, "alice", "wonder")
    checking = broker.check_password(CLIENT, "alice", "wonder")
    step = next(checking)
    step()
    broker.delete_user(OWNED, "alice").result()
    with pytest.raises(AuthenticationError):
        next(checking)


def test_a_wrong_user_takes_the_same_work_as_a_wrong_password(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts iterations instead of time."""
    set_password(broker, "alice", "wonder")
    assert alter(broker, upsertion("slow", 1, 16_384), upsertion("other", 2, 8192)) == {
        "slow": 0,
        "other": 0,
    }
    work: Counter[str] = Counter()
    real = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        work[name] += iterations
        return real(name, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    for user, password in (
        ("alice", "wonder"),
        ("alice", "wander"),
        ("slow", "wander"),
        ("other", "wander"),
        ("unknown", "wander"),
        ("*", "wander"),
        ("x" * 1000, "wander"),
    ):
        work.clear()
        logs_in(broker, user, password)
        assert work == {"sha256": 16_384, "sha512": 8192}, user


# -- requests about users --------------------------------------------------------------------------


def test_a_new_password_replaces_the_old_one_for_every_mechanism(broker: Broker) -> None:
    set_password(broker, "alice", "old")
    version = broker.credentials_version
    set_password(broker, "alice", "new", (SHA_512,))
    assert broker.credentials_version > version
    assert users(broker) == {"alice": [2]}
    assert logs_in(broker, "alice", "new")
    assert not logs_in(broker, "alice", "old")
    assert not scram(broker, SHA_256, "alice", "old")
    assert scram(broker, SHA_512, "alice", "new")


def test_a_deleted_user_does_not_log_in(broker: Broker) -> None:
    set_password(broker, "alice", "wonder")
    version = broker.credentials_version
    broker.delete_user(OWNED, "alice").result()
    assert broker.credentials_version > version
    assert not logs_in(broker, "alice", "wonder")
    assert not scram(broker, SHA_256, "alice", "wonder")
    assert users(broker) == {}
    with pytest.raises(ResourceNotFoundError):
        broker.delete_user(OWNED, "alice").result()


def test_users_are_described_by_name(broker: Broker) -> None:
    set_password(broker, "b", "pw")
    set_password(broker, "a", "pw", (SHA_256,))
    assert users(broker) == {"a": [1], "b": [1, 2]}
    assert len(run_inline(broker.describe_users(OWNED, []))) == 2, "as without names"
    found = run_inline(broker.describe_users(OWNED, ["b", "missing", "a", "a"]))
    codes = {each.name: each.error and each.error.kafka_code for each in found}
    assert codes == {"b": None, "missing": 91, "a": 92}
    assert found[0].iterations == {SHA_256: 4096, SHA_512: 4096}


def test_good_changes_of_a_request_succeed_beside_bad_ones(broker: Broker) -> None:
    set_password(broker, "old", "pw")
    codes = alter(
        broker,
        CredentialDeletion("old", 1),
        CredentialDeletion("missing", 1),
        CredentialDeletion("", 1),
        CredentialDeletion("odd", 7),
        upsertion("good"),
        upsertion("few", iterations=4095),
        upsertion("many", iterations=16_385),
        upsertion("kind", mechanism=3),
    )
    assert codes == {
        "old": 0,
        "missing": 91,
        "": 93,
        "odd": 33,
        "good": 0,
        "few": 93,
        "many": 93,
        "kind": 33,
    }
    assert users(broker) == {"good": [1], "old": [2]}
    assert logs_in(broker, "good", "pw")


def test_a_user_named_twice_in_a_request_is_not_changed(broker: Broker) -> None:
    set_password(broker, "b", "pw")
    assert alter(broker, upsertion("a", 1), upsertion("a", 2)) == {"a": 92}
    assert alter(broker, CredentialDeletion("b", 1), upsertion("b", 1)) == {"b": 92}
    assert alter(broker, CredentialDeletion("b", 1), CredentialDeletion("b", 2)) == {"b": 92}
    assert users(broker) == {"b": [1, 2]}


def test_a_credential_of_an_odd_size_is_not_accepted(broker: Broker) -> None:
    good = upsertion("a")
    assert alter(broker, good._replace(salt=b"")) == {"a": 0}
    assert alter(broker, good._replace(salt=bytes(SALT_MAX_BYTES + 1))) == {"a": 93}
    assert alter(broker, good._replace(salted_password=b"")) == {"a": 93}
    assert alter(broker, good._replace(mechanism=2)) == {"a": 93}, "the key of SHA-256"


@pytest.mark.parametrize(
    "name",
    ["", "*", "ANONYMOUS", "a\0b", "a\x01b", "a\nb", "\x7f", "ä", "Ⅸ", "x" * 256, "\ud800"],
)
def test_a_reserved_or_unprintable_name_cannot_be_created(broker: Broker, name: str) -> None:
    with pytest.raises(UnacceptableCredentialError):
        set_password(broker, name, "pw")
    assert alter(broker, upsertion(name)) == {name: 93}
    assert users(broker) == {}


def test_unusual_but_printable_names_work_everywhere(broker: Broker) -> None:
    for name in ("a,b=c", "User:x", "anonymous", " ", "x" * USER_NAME_MAX_CHARACTERS):
        set_password(broker, name, "pw")
        assert logs_in(broker, name, "pw")
        assert scram(broker, SHA_512, name, "pw")


def test_passwords_have_a_size_and_no_nul(broker: Broker) -> None:
    for password in ("", "a\0", "x" * (PASSWORD_MAX_BYTES + 1), "ä" * PASSWORD_MAX_BYTES):
        with pytest.raises(UnacceptableCredentialError):
            set_password(broker, "a", password)
    for password in ("x" * PASSWORD_MAX_BYTES, "Ⅸ", "\x01", "p\ud800"):
        set_password(broker, "a", password)
        assert logs_in(broker, "a", password)
    assert not logs_in(broker, "a", "IX"), "no SASLprep"


def test_the_number_of_users_and_of_changes_is_limited(disk: SimulatedFiles) -> None:
    broker = open_broker(disk, {"users.max.count": "2", "max.user.changes.per.request": "3"})
    assert alter(broker, upsertion("a"), upsertion("b"), upsertion("c")) == {
        "a": 0,
        "b": 0,
        "c": 44,
    }
    with pytest.raises(PolicyViolationError, match=r"users\.max\.count"):
        set_password(broker, "c", "pw")
    set_password(broker, "a", "new")
    with pytest.raises(PolicyViolationError, match=r"max\.user\.changes\.per\.request"):
        alter(broker, *(upsertion(name) for name in "abcd"))
    broker.delete_user(OWNED, "a").result()
    set_password(broker, "c", "pw")
    broker.close()


def test_requests_about_users_need_a_permission(disk: SimulatedFiles) -> None:
    broker = open_broker(disk, {"authorizer.class.name": "strandlog"})
    set_password(broker, "alice", "wonder")

    def tries() -> Iterator[Callable[[], object]]:
        yield lambda: run_inline(broker.describe_users(CLIENT, None))
        yield lambda: broker.alter_users(CLIENT, [], [upsertion("x")]).result()
        yield lambda: set_password(broker, "x", "pw", context=CLIENT)
        yield lambda: broker.delete_user(CLIENT, "alice").result()
        yield lambda: broker.delete_user(CLIENT, "missing").result()

    for attempt in tries():
        with pytest.raises(ClusterAuthorizationError):
            attempt()
    assert users(broker) == {"alice": [1, 2]}
    broker.close()


# -- storage ---------------------------------------------------------------------------------------


def test_users_and_the_salts_of_unknown_ones_outlive_a_restart(disk: SimulatedFiles) -> None:
    def salt(broker: Broker, user: str) -> bytes:
        exchange = broker.begin_sasl(CLIENT, "SCRAM-SHA-256")
        answer = run_inline(exchange.respond(f"n,,n={user},r=abc".encode())).answer
        return answer.partition(b",s=")[2]

    broker = open_broker(disk)
    set_password(broker, "alice", "wonder")
    set_password(broker, "gone", "wonder")
    broker.delete_user(OWNED, "gone").result()
    salts = [salt(broker, user) for user in ("alice", "unknown", "gone")]
    broker.close()
    broker = open_broker(disk)
    assert users(broker) == {"alice": [1, 2]}
    assert logs_in(broker, "alice", "wonder")
    assert scram(broker, SHA_512, "alice", "wonder")
    assert [salt(broker, user) for user in ("alice", "unknown", "gone")] == salts
    assert broker.problems == []
    broker.close()


def test_neither_password_nor_salted_password_is_on_disk(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    set_password(broker, "alice", "wonderland")
    change = upsertion("bob", password="builder-of-things")
    assert alter(broker, change) == {"bob": 0}
    broker.close()
    data = b"".join(disk.contents().values())
    assert b"alice" in data
    for secret in (b"wonderland", b"builder-of-things", change.salted_password):
        assert secret not in data


def test_a_change_that_is_not_written_has_no_effect(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    set_password(broker, "alice", "old")
    disk.fail_next("append")
    with pytest.raises(StrandlogError):
        set_password(broker, "alice", "new")
    assert logs_in(broker, "alice", "old")
    assert not logs_in(broker, "alice", "new")
    set_password(broker, "alice", "new")
    assert logs_in(broker, "alice", "new")
    broker.close()


@pytest.mark.parametrize("keeps_reserve", [True, False])
def test_a_user_can_be_deleted_with_the_reserve_of_a_full_disk(keeps_reserve: bool) -> None:
    disk = SimulatedFiles(capacity_bytes=64 * MIB)
    broker = open_broker(disk, {"log.reserve.bytes": str(MIB)}, keeps_reserve=keeps_reserve)
    set_password(broker, "alice", "wonder")
    used_bytes = 64 * MIB - disk.free_bytes("data")
    disk.capacity_bytes = used_bytes
    if not keeps_reserve:
        with pytest.raises(DiskFullError):
            broker.delete_user(OWNED, "alice").result()
        disk.capacity_bytes = used_bytes + MIB
    broker.delete_user(OWNED, "alice").result()
    assert users(broker) == {}
    broker.close()


def _batches(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = 12 + int.from_bytes(data[8:12])
        found.append(data[:size])
        data = data[size:]
    return found


def _flip_last(disk: SimulatedFiles) -> None:
    """Damage the last batch, which deletes a user."""
    disk.flip_bit(LOG, 8 * (disk.size(LOG) - 20))


def _cut_last(disk: SimulatedFiles) -> None:
    disk.truncate(LOG, disk.size(LOG) - len(_batches(disk.read(LOG))[-1]))


def _flip_first(disk: SimulatedFiles) -> None:
    disk.flip_bit(LOG, 8 * 80)


def _unlink(disk: SimulatedFiles) -> None:
    disk.remove(LOG)


@pytest.mark.parametrize("damage", [_flip_last, _cut_last, _flip_first, _unlink])
def test_a_lost_record_brings_neither_a_deleted_user_nor_an_old_password_back(
    disk: SimulatedFiles, damage: Callable[[SimulatedFiles], None]
) -> None:
    broker = open_broker(disk)
    set_password(broker, "alice", "wonder")
    set_password(broker, "gone", "pw")
    broker.delete_user(OWNED, "gone").result()
    broker.close()
    damage(disk)
    disk.sync_everything()
    for _ in range(3):  # later starts may find nothing wrong with the files
        broker = open_broker(disk, {"super.users": "User:alice"})
        for user, password in (("gone", "pw"), ("alice", "wonder")):
            assert not logs_in(broker, user, password)
            assert not scram(broker, SHA_512, user, password)
        assert "stored passwords are not accepted" in "; ".join(broker.problems)
        distrusted = {
            each.name: each.is_distrusted for each in run_inline(broker.describe_users(OWNED, None))
        }
        assert set(distrusted.values()) <= {True}
        broker.close()
    for settings in ({"acls.accept.loss": "true"}, {}):  # one start with it is enough
        broker = open_broker(disk, settings)
        assert logs_in(broker, "alice", "wonder") is (damage in (_flip_last, _cut_last))
        assert bool(broker.problems) is bool(settings)
        broker.close()


def test_a_password_that_is_set_after_a_loss_is_accepted(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    set_password(broker, "alice", "old")
    set_password(broker, "bob", "old")
    set_password(broker, "bob", "new")
    broker.close()
    _cut_last(disk)
    disk.sync_everything()
    broker = open_broker(disk)
    set_password(broker, "alice", "fresh")
    assert logs_in(broker, "alice", "fresh")
    assert not logs_in(broker, "bob", "old")
    broker.close()
    broker = open_broker(disk)
    assert logs_in(broker, "alice", "fresh")
    assert not logs_in(broker, "bob", "old")
    broker.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (CredentialKey("*", 1), CredentialValue(b"s", bytes(32), bytes(32), 4096)),
        (CredentialKey("ANONYMOUS", 1), CredentialValue(b"s", bytes(32), bytes(32), 4096)),
        (CredentialKey("x", 9), CredentialValue(b"s", bytes(32), bytes(32), 4096)),
        (CredentialKey("x", 2), CredentialValue(b"s", bytes(32), bytes(32), 4096)),
        (CredentialKey("x", 1), CredentialValue(b"s", b"", b"", 4096)),
        (CredentialKey("x", 1), CredentialValue(b"s", bytes(32), bytes(32), 1)),
    ],
)
def test_a_stored_record_that_cannot_be_a_credential_counts_as_a_loss(
    disk: SimulatedFiles, key: CredentialKey, value: CredentialValue
) -> None:
    broker = open_broker(disk)
    set_password(broker, "alice", "wonder")
    record = (encode_credential_key(key), encode_credential(value))
    broker._security_table.append([record], 0)
    broker.close()
    broker = open_broker(disk)
    assert not logs_in(broker, "alice", "wonder")
    assert users(broker) == {"alice": [1, 2]}
    assert f"a record of {SECURITY_TOPIC} cannot be used" in "; ".join(broker.problems)
    broker.close()


def test_compaction_keeps_users_and_what_is_known_about_a_loss(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    set_password(broker, "alice", "old")
    set_password(broker, "bob", "old")
    set_password(broker, "bob", "new")
    broker.close()
    _cut_last(disk)
    disk.sync_everything()
    broker = open_broker(disk)
    for number in range(5):
        set_password(broker, "alice", f"pw{number}")
    log = broker._security_table.existing_log_for("")
    log.roll()
    report = broker.compact_topic(OWNED, SECURITY_TOPIC).result()
    assert report.records_removed > 0
    broker.close()
    broker = open_broker(disk)
    assert logs_in(broker, "alice", "pw4")
    assert not logs_in(broker, "bob", "old")
    broker.close()


def test_a_power_cut_leaves_a_user_as_before_or_after_a_change_and_is_not_a_loss(
    disk: SimulatedFiles,
) -> None:
    """At every step of the disk, and for several outcomes of a power cut at it."""
    changes: list[Callable[[Broker], object]] = [
        lambda broker: alter(broker, upsertion("alice", password="old")),
        lambda broker: alter(broker, upsertion("alice", password="new")),
        lambda broker: alter(broker, upsertion("bob")),
        lambda broker: broker.delete_user(OWNED, "alice").result(),
    ]
    forks: list[tuple[SimulatedFiles, int]] = []
    done = 0

    def before_step(_: Step) -> None:
        disk.watch(None)
        forks.extend((disk.after_crash(choice), done) for choice in disk.crash_states(3))
        disk.watch(before_step)

    broker = open_broker(disk)
    states = [_stored(broker)]
    disk.watch(before_step)
    for change in changes:
        change(broker)
        done += 1
        states.append(_stored(broker))
    disk.watch(None)
    broker.close()
    assert len(forks) > 20
    for fork, durable in forks:
        again = open_broker(fork)
        assert _stored(again) in states[durable : durable + 2]
        assert "lost" not in "; ".join(again.problems)
        assert not any(again._credentials.is_distrusted(user) for user in ("alice", "bob"))
        again.close()


@pytest.mark.slow
def test_a_power_cut_while_a_loss_is_accepted_keeps_the_remaining_users(
    disk: SimulatedFiles,
) -> None:
    broker = open_broker(disk)
    for user in ("lost", "alice", "bob"):
        set_password(broker, user, "pw", (SHA_256,))
    broker.close()
    _flip_first(disk)
    disk.sync_everything()
    forks: list[SimulatedFiles] = []

    def before_step(_: Step) -> None:
        disk.watch(None)
        forks.extend(disk.after_crash(choice) for choice in disk.crash_states(2))
        disk.watch(before_step)

    disk.watch(before_step)
    accepting = open_broker(disk, {"acls.accept.loss": "true"})
    disk.watch(None)
    remaining = _stored(accepting)
    accepting.close()
    needs_it_again = set()
    for fork in forks:
        again = open_broker(fork)
        assert _stored(again) == remaining
        needs_it_again.add(again._credentials.is_distrusted("alice"))
        again.close()
        again = open_broker(fork, {"acls.accept.loss": "true"})
        assert _stored(again) == remaining
        assert not again._credentials.is_distrusted("alice")
        again.close()
    assert needs_it_again == {True, False}


def _stored(broker: Broker) -> dict[str, object]:
    return {user: broker._credentials.of(user) for user in ("alice", "bob")}


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "upsert", "delete", "forget", "restart", "compact"]),
        st.sampled_from("abc"),
        st.sampled_from(list(ScramMechanism)),
        st.integers(0, 3),
    ),
    max_size=25,
)


@given(CHANGES)
def test_users_are_those_of_the_last_changes_after_any_restarts_and_compactions(
    changes: list[tuple[str, str, ScramMechanism, int]],
) -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    model: dict[str, dict[ScramMechanism, bytes]] = {}
    for what, user, mechanism, number in changes:
        if what == "upsert":
            salted = bytes([number]) * mechanism.key_bytes
            wanted = CredentialUpsertion(user, mechanism, 4096, b"salt", salted)
            assert alter(broker, wanted) == {user: 0}
            stored = credential_of(mechanism, salted, b"salt", 4096).stored_key
            model.setdefault(user, {})[mechanism] = stored
        elif what == "delete":
            expected = 0 if mechanism in model.get(user, {}) else 91
            assert alter(broker, CredentialDeletion(user, mechanism)) == {user: expected}
            model.get(user, {}).pop(mechanism, None)
        elif what == "forget" and model.get(user):
            broker.delete_user(OWNED, user).result()
            del model[user]
        elif what == "compact" and broker._security_table.exists:
            broker._security_table.existing_log_for("").roll()
            broker.compact_topic(OWNED, SECURITY_TOPIC).result()
        elif what == "restart":
            broker.close()
            broker = open_broker(disk)
        found = {
            name: {kind: each.stored_key for kind, each in broker._credentials.of(name).items()}
            for name in broker._credentials
        }
        assert found == {name: kinds for name, kinds in model.items() if kinds}
    assert broker.problems == []
    broker.close()
