"""The table of credentials: stand-ins for unknown users, equal work, distrust after a loss."""

from __future__ import annotations

from strandlog.broker.access.credentials import Credentials
from strandlog.broker.access.scram import (
    DEFAULT_ITERATIONS,
    ScramCredential,
    ScramMechanism,
)
from strandlog.config.limits.access import USER_NAME_MAX_CHARACTERS

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def credential(
    mechanism: ScramMechanism = SHA_256, iterations: int = DEFAULT_ITERATIONS
) -> ScramCredential:
    key = bytes(mechanism.key_bytes)
    return ScramCredential(mechanism, b"salt", key, key, iterations)


def test_a_stand_in_depends_on_the_name_the_mechanism_and_the_secret_only() -> None:
    one, same, other = Credentials(b"a"), Credentials(b"a"), Credentials(b"b")
    stand_in = one.for_login("x", SHA_256)
    assert stand_in == same.for_login("x", SHA_256)
    for different in (
        one.for_login("y", SHA_256),
        one.for_login("x", SHA_512),
        other.for_login("x", SHA_256),
    ):
        assert different.salt != stand_in.salt
        assert different.stored_key != stand_in.stored_key
        assert len(different.salt) == len(stand_in.salt)


def test_the_number_of_iterations_does_not_reveal_that_a_user_exists() -> None:
    credentials = Credentials(b"secret")
    unknown = [f"unknown{number}" for number in range(64)]

    def numbers() -> list[int]:
        return [credentials.for_login(each, SHA_256).iterations for each in unknown]

    assert set(numbers()) == {DEFAULT_ITERATIONS}
    credentials.put("strong", credential(SHA_256, 16_384))
    assert set(numbers()) == {16_384}
    credentials.put("other", credential(SHA_256, 8192))
    credentials.put("usual", credential(SHA_512))
    assert set(numbers()) == {16_384, 8192}
    assert numbers() == numbers()
    before = numbers()
    credentials.put("one more", credential(SHA_256, 5000))
    assert all(now in (5000, old) for now, old in zip(numbers(), before, strict=True))


def test_a_name_that_is_too_long_is_not_hashed_as_a_whole() -> None:
    credentials = Credentials(b"secret")
    long = "x" * (USER_NAME_MAX_CHARACTERS + 1)
    stand_in = credentials.for_login(long, SHA_256)
    assert stand_in == credentials.for_login(long + "y", SHA_256)
    assert stand_in != credentials.for_login(long[:-1], SHA_256), "which may be a user"


def test_every_user_takes_the_same_work_to_check() -> None:
    credentials = Credentials(b"secret")

    def work(user: str) -> list[tuple[ScramMechanism, int]]:
        checks = credentials.password_checks(user)
        return [(each.credential.mechanism, each.total_iterations) for each in checks]

    assert work("unknown") == [(SHA_256, DEFAULT_ITERATIONS)]
    credentials.put("slow", credential(SHA_256, 16_384))
    credentials.put("other", credential(SHA_512, 8192))
    expected = [(SHA_256, 16_384), (SHA_512, 8192)]
    assert work("slow") == work("other") == work("unknown") == expected
    credentials.put("slow", credential(SHA_256, 5000))
    credentials.remove("other", SHA_512)
    assert work("slow") == work("other") == work("unknown") == [(SHA_256, 5000)]


def test_a_user_ends_with_its_last_credential() -> None:
    credentials = Credentials(b"secret")
    credentials.put("a", credential(SHA_512))
    credentials.put("a", credential(SHA_256))
    assert list(credentials.of("a")) == [SHA_256, SHA_512]
    credentials.remove("a", SHA_256)
    assert "a" in credentials
    credentials.remove("a", SHA_512)
    credentials.remove("a", SHA_512)
    assert "a" not in credentials
    assert len(credentials) == 0


def test_every_change_has_its_own_version() -> None:
    credentials = Credentials(b"secret")
    versions = [credentials.version]
    credentials.put("a", credential())
    versions.append(credentials.version)
    credentials.put("a", credential())
    versions.append(credentials.version)
    credentials.remove("a", SHA_256)
    versions.append(credentials.version)
    credentials.distrust()
    versions.append(credentials.version)
    assert versions == sorted(set(versions))


def test_distrusted_credentials_are_not_used_until_they_are_replaced() -> None:
    credentials = Credentials(b"secret")
    credentials.put("a", credential())
    credentials.put("b", credential())
    credentials.distrust()
    credentials.put("c", credential())
    assert credentials.for_login("c", SHA_256) == credential()
    assert credentials.for_login("a", SHA_256) != credential()
    assert [credentials.is_distrusted(user) for user in "abc"] == [True, True, False]
    credentials.put("a", credential())
    assert credentials.for_login("a", SHA_256) == credential()
    assert credentials.for_login("b", SHA_256) != credential()


def test_a_session_does_not_end_when_another_mechanism_of_its_user_changes() -> None:
    """Otherwise a user that changes its own credentials one by one loses its connection halfway."""
    users = Credentials(b"secret")
    users.put("a", credential(SHA_256))
    users.put("a", credential(SHA_512))
    of_all, of_first, of_second = (
        users.stamp("a"),
        users.stamp("a", SHA_256),
        users.stamp("a", SHA_512),
    )
    users.remove("a", SHA_512)
    assert users.stamp("a", SHA_256) == of_first
    assert users.stamp("a", SHA_512) != of_second
    assert users.stamp("a") != of_all
