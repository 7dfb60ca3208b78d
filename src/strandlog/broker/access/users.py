"""The contents of requests about users, and their validation.

    name           1 to 255 printable ASCII characters, but not `ANONYMOUS` or `*`: in rules, these
                   stand for clients without a login and for all users
    mechanism      1 = SCRAM-SHA-256, 2 = SCRAM-SHA-512
    iterations     4096 to 16384

The checks and their errors are Kafka's, except that Kafka checks neither the name nor the sizes of
the salt and the salted password.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from strandlog.broker.access.sasl import problem_of_name
from strandlog.broker.access.scram import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    credential_of,
)
from strandlog.config.limits.access import PASSWORD_MAX_BYTES, SALT_MAX_BYTES, SCRAM_MAX_ITERATIONS
from strandlog.errors import (
    StrandlogError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)


class UserDescription(NamedTuple):
    """A user and the iterations of its credentials, or the error if it cannot be described."""

    name: str
    iterations: dict[ScramMechanism, int]
    error: StrandlogError | None = None
    is_distrusted: bool = False  # a stored password is not accepted, because records were lost


class CredentialDeletion(NamedTuple):
    """A request to delete the credential of a user for one mechanism."""

    user: str
    mechanism: int  # Kafka's code, which may be unknown


class CredentialUpsertion(NamedTuple):
    """A request to create or replace the credential of a user for one mechanism.

    The salted password is as good as the password: it must reach the broker over TLS or loopback.
    """

    user: str
    mechanism: int  # Kafka's code, which may be unknown
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"CredentialUpsertion({self.user!r}, mechanism={self.mechanism})"


Outcomes = dict[str, StrandlogError | None]  # by user


def new_credential(wanted: CredentialUpsertion) -> ScramCredential:
    """Return the credential that a request describes; raise if it is not acceptable."""
    check_name(wanted.user)
    mechanism = mechanism_of(wanted.mechanism)
    check_iterations(wanted.iterations)
    if len(wanted.salted_password) != mechanism.key_bytes:
        raise UnacceptableCredentialError(
            f"the salted password for {mechanism.sasl_name} must have {mechanism.key_bytes} bytes, "
            f"got {len(wanted.salted_password)}"
        )
    if len(wanted.salt) > SALT_MAX_BYTES:
        raise UnacceptableCredentialError(
            f"a salt may have at most {SALT_MAX_BYTES} bytes, got {len(wanted.salt)}"
        )
    salted, salt = bytes(wanted.salted_password), bytes(wanted.salt)
    return credential_of(mechanism, salted, salt, wanted.iterations)


def check_deletion(wanted: CredentialDeletion) -> None:
    """Raise if the user name is empty or the mechanism is unknown. This does not check whether the
    credential exists."""
    if not wanted.user:
        check_name(wanted.user)
    mechanism_of(wanted.mechanism)


def check_name(user: str) -> None:
    if (problem := problem_of_name(user)) is not None:
        raise UnacceptableCredentialError(problem)


def mechanism_of(code: int) -> ScramMechanism:
    try:
        return ScramMechanism(code)
    except ValueError as error:
        raise UnsupportedSaslMechanismError(
            f"unknown SCRAM mechanism {code}: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512"
        ) from error


def check_password_text(password: str) -> None:
    """Raise `UnacceptableCredentialError` if a new password is empty, is too long, or contains NUL
    characters, which PLAIN cannot transmit."""
    if not password or "\0" in password:
        raise UnacceptableCredentialError("a password must not be empty or contain a NUL character")
    if (size := len(password.encode("utf-8", "surrogatepass"))) > PASSWORD_MAX_BYTES:
        raise UnacceptableCredentialError(
            f"a password may have at most {PASSWORD_MAX_BYTES} bytes, got {size}"
        )


def check_iterations(iterations: int) -> None:
    if not MIN_ITERATIONS <= iterations <= SCRAM_MAX_ITERATIONS:
        raise UnacceptableCredentialError(
            f"the number of iterations must be between {MIN_ITERATIONS} and "
            f"{SCRAM_MAX_ITERATIONS}, got {iterations}"
        )


def repeated_names(names: Iterable[str]) -> set[str]:
    """Return the names that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}
