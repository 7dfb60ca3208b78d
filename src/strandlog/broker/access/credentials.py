"""The SCRAM credentials of all users, in memory.

A login must not reveal which users exist. For a user without a credential, `for_login` returns one
that no password matches: its salt and keys are derived from the name with a secret, so they are the
same at every attempt. The secret is stored beside the credentials; otherwise a restart would change
only the salts of users that do not exist. The number of iterations is one that real
credentials of the same mechanism have, chosen by the name: a login with a rare number does not
prove that the user exists. The salt has the default length, so a login does reveal that a user
exists if another tool created the user's credential with a salt of another length.

`password_checks` returns the same amount of work for every user: one check for each mechanism that
any credential uses, with the largest number of iterations.

If records were lost (`security_store.py`), a deleted user or an old password may have come back.
`distrust` rejects all credentials that have been loaded by then, until they are replaced.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from strandlog.broker.access.scram import (
    DEFAULT_ITERATIONS,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
)
from strandlog.config.limits.access import USER_NAME_MAX_CHARACTERS

SECRET_BYTES = 32


class PasswordCheck(NamedTuple):
    """A credential to check a password against, and how many iterations to spend on the check."""

    credential: ScramCredential
    total_iterations: int


class Credentials:
    """The credentials of one broker, by user and mechanism."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.version = 0  # increases with every change
        self._users: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        self._distrusted: set[tuple[str, ScramMechanism]] = set()
        self._iterations: Counter[tuple[ScramMechanism, int]] = Counter()
        # The iterations of each mechanism; filled by `password_checks` when needed.
        self._work: dict[ScramMechanism, int] = {}

    def __len__(self) -> int:
        """The number of users."""
        return len(self._users)

    def __contains__(self, user: str) -> bool:
        return user in self._users

    def __iter__(self) -> Iterator[str]:
        return iter(self._users)

    def of(self, user: str) -> dict[ScramMechanism, ScramCredential]:
        """Return the credentials of a user; the result is empty if the user does not exist."""
        return dict(sorted(self._users.get(user, {}).items()))

    def put(self, user: str, credential: ScramCredential) -> None:
        """Add a credential, or replace the user's credential for the same mechanism."""
        mechanism = credential.mechanism
        self.remove(user, mechanism)
        self._users.setdefault(user, {})[mechanism] = credential
        self._iterations[mechanism, credential.iterations] += 1
        self._work.clear()

    def remove(self, user: str, mechanism: ScramMechanism) -> None:
        """Remove a credential, if it exists."""
        self.version += 1
        self._distrusted.discard((user, mechanism))
        old = self._users.get(user, {}).pop(mechanism, None)
        if old is None:
            return
        if not self._users[user]:
            del self._users[user]
        self._work.clear()
        self._iterations[mechanism, old.iterations] -= 1
        if not self._iterations[mechanism, old.iterations]:
            del self._iterations[mechanism, old.iterations]

    def distrust(self) -> None:
        """Reject all logins with the present credentials, because newer ones may have been lost."""
        self.version += 1
        self._distrusted.update(
            (user, mechanism) for user, each in self._users.items() for mechanism in each
        )

    def is_distrusted(self, user: str) -> bool:
        """Return whether a user has a credential that is rejected because records were lost."""
        return any((user, mechanism) in self._distrusted for mechanism in self.of(user))

    def stamp(self, user: str, only: ScramMechanism | None = None) -> bytes:
        """Return a hash of the credentials that a user can log in with; with `only`, a hash of the
        credential for that mechanism."""
        found = hashlib.sha256()
        for mechanism, each in self.of(user).items():
            if only in (None, mechanism) and (user, mechanism) not in self._distrusted:
                found.update(b"%d:" % mechanism + each.stored_key)
        return found.digest()

    def for_login(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return the credential of a user, or one that no password matches. Both cases take
        equally long."""
        stand_in = self._stand_in(user, mechanism)
        found = self._users.get(user, {}).get(mechanism)
        if found is None or (user, mechanism) in self._distrusted:
            return stand_in
        return found

    def password_checks(self, user: str) -> list[PasswordCheck]:
        """Return the checks for a password; the password is correct if any of them succeeds."""
        work = self._work
        if not work:
            for mechanism, iterations in sorted(self._iterations):
                work[mechanism] = max(iterations, DEFAULT_ITERATIONS)
            if not work:
                work[ScramMechanism.SHA_256] = DEFAULT_ITERATIONS
        return [
            PasswordCheck(self.for_login(user, mechanism), total)
            for mechanism, total in work.items()
        ]

    def _stand_in(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        # Clients may send names of several megabytes, but no user has a name longer than this.
        name = user[: USER_NAME_MAX_CHARACTERS + 1]
        data = f"{mechanism.sasl_name}:{name}".encode("utf-8", "surrogatepass")
        hash_name = mechanism.hash_name
        return ScramCredential(
            mechanism,
            hmac.digest(self.secret, b"salt:" + data, hash_name)[:SALT_BYTES],
            hmac.digest(self.secret, b"stored key:" + data, hash_name),
            hmac.digest(self.secret, b"server key:" + data, hash_name),
            self._stand_in_iterations(mechanism, data),
        )

    def _stand_in_iterations(self, mechanism: ScramMechanism, data: bytes) -> int:
        """Return one of the numbers of iterations in use. Each name ranks the numbers in its own
        order, so a new number changes the choice for only some of the names."""
        numbers = [number for each, number in self._iterations if each is mechanism]
        if len(numbers) < 2:
            return numbers[0] if numbers else DEFAULT_ITERATIONS
        return max(
            numbers, key=lambda number: hmac.digest(self.secret, b"%d:" % number + data, "sha256")
        )
