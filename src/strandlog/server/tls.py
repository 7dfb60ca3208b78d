"""TLS contexts of the listeners, and their replacement when files change.

    TlsContexts         one per listener: the context for the next handshake, and the principal of a
                        client certificate
    CertificateReload   checks the files of all listeners in a thread, every ssl.reload.interval.ms
                        (the shortest of any listener) and immediately on SIGHUP

A check reads the files and compares a hash of their contents, because modification times can go
backwards, or stay the same when a container's volume is swapped. If the contents differ, a new
context replaces the old one; open connections keep theirs. If the new contents cannot be loaded,
the old context stays in use, the error is logged, and the next check tries again.

A reload always creates a new context, because CAs can only be added to an existing one. That also
ends session resumption across a reload: sessions belong to their context, so a client whose CA was
removed cannot resume one. Tickets are disabled: a resumed session skips the verification of the
client's certificate, and an expired certificate must not be accepted for the lifetime of a ticket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from strandlog.broker.access.sasl import problem_of_principal
from strandlog.broker.context import Principal
from strandlog.broker.metrics import Metrics
from strandlog.clock import Clock
from strandlog.config.limits.access import SUBJECT_MAX_CHARACTERS
from strandlog.config.principal_rules import parse_principal_rules
from strandlog.config.tables.tls import (
    NO_CLIENT_CERTIFICATE,
    REQUESTED,
    REQUIRED,
    TLS_1_2,
    TLS_1_3,
    TlsSettings,
)
from strandlog.errors import AuthenticationError, ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from strandlog.server.network.certificates import KeyMaterial, Stores

logger = logging.getLogger(__name__)

VERIFY_MODES = {
    NO_CLIENT_CERTIFICATE: ssl.CERT_NONE,
    REQUESTED: ssl.CERT_OPTIONAL,
    REQUIRED: ssl.CERT_REQUIRED,
}


class TlsContexts:
    """The TLS contexts of one listener; `current` is the one for the next handshake."""

    def __init__(self, label: str, settings: TlsSettings, clock: Clock) -> None:
        """Read the files; raise `ConfigurationError` if they cannot be used."""
        try:
            from strandlog.server.network import certificates  # noqa: PLC0415 - imports an optional dependency
        except ImportError as error:
            raise MissingExtraError("security", error.name or "cryptography") from error
        self._certificates = certificates
        self.label = label
        self.settings = settings
        self._clock = clock
        self._rules = parse_principal_rules(settings.ssl_principal_mapping_rules)
        stores = self._read()
        self._digest = stores.digest()
        self.material, self._current = self._load(stores)

    def current(self) -> ssl.SSLContext:
        """Return the context for the next handshake."""
        return self._current

    @property
    def handshake_seconds(self) -> float:
        return self.settings.ssl_handshake_timeout_ms / 1000

    def principal_of(self, certificate: bytes | None) -> Principal | None:
        """Return the principal for a client's certificate (DER), or None without a certificate.

        Raise `AuthenticationError` if the certificate cannot be parsed, if no rule of
        ssl.principal.mapping.rules matches its subject, or if the resulting name is not a valid
        user name.
        """
        if certificate is None:
            return None
        try:
            subject = self._certificates.subject_text(certificate)
        except ValueError as error:
            raise AuthenticationError(f"the certificate cannot be parsed: {error}") from error
        name = self._rules.name_of(subject)
        if name is None:
            raise AuthenticationError(
                f"the certificate's subject {_printable(subject)} matches no rule of "
                f"ssl.principal.mapping.rules"
            )
        if (problem := problem_of_principal(name, SUBJECT_MAX_CHARACTERS)) is not None:
            raise AuthenticationError(f"the certificate's subject is not accepted: {problem}")
        return Principal("User", name)

    # -- loading ---------------------------------------------------------------------------------

    def reload(self) -> bool:
        """Load the files if they have changed; return whether they have. Call this in a thread.

        Raise `ConfigurationError` if they cannot be used; `current` then stays the same.
        """
        stores = self._read()
        digest = stores.digest()
        if digest == self._digest:
            return False
        self.material, self._current = self._load(stores)
        self._digest = digest
        return True

    def _read(self) -> Stores:
        try:
            return self._certificates.read_stores(self.settings)
        except ConfigurationError as error:
            raise self._named(error) from error

    def _load(self, stores: Stores) -> tuple[KeyMaterial, ssl.SSLContext]:
        try:
            now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
            material = self._certificates.load(stores, self.settings.ssl_key_password, now)
            context = make_context(material, self.settings)
        except ConfigurationError as error:
            raise self._named(error) from error
        except OSError as error:  # an SSLError, or no descriptor is free
            reason = getattr(error, "reason", None) or error.strerror
            raise ConfigurationError(
                [f"listener {self.label}: the key or a certificate is not usable: {reason}"]
            ) from error
        for warning in material.warnings:
            logger.warning("listener %s: %s", self.label, warning)
        return material, context

    def _named(self, error: ConfigurationError) -> ConfigurationError:
        return ConfigurationError([f"listener {self.label}: {each}" for each in error.problems])


def make_context(material: KeyMaterial, settings: TlsSettings) -> ssl.SSLContext:
    """Return a server context with these settings, without renegotiation and session tickets."""
    enabled = settings.ssl_enabled_protocols
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_2 if TLS_1_2 in enabled else ssl.TLSVersion.TLSv1_3
    )
    if TLS_1_3 not in enabled:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0  # no tickets in TLS 1.3 either
    with _as_file(material.private_key + material.chain) as path:
        context.load_cert_chain(path)
    context.verify_mode = VERIFY_MODES[settings.ssl_client_auth]
    if context.verify_mode != ssl.CERT_NONE:
        # As in Java, every certificate in the file is trusted, not only self-signed ones.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=material.authorities.decode("ascii"))
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Make bytes readable under a path: Python's ssl loads private keys only from files. On Linux
    the file is in memory; elsewhere only its owner may read it, and it is removed after use."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tls")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        import tempfile  # noqa: PLC0415 - not needed on Linux

        with tempfile.NamedTemporaryFile() as file:  # mode 0600
            file.write(data)
            file.flush()
            yield file.name


class CertificateReload:
    """Reloads the files of all TLS listeners when they change."""

    def __init__(
        self,
        contexts: Iterable[TlsContexts],
        metrics: Metrics,
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        self._contexts = tuple(contexts)
        self._metrics = metrics
        self._on_crash = on_crash
        # The current error of each context, so that it is logged only once.
        self._failures: dict[TlsContexts, str] = {}
        self._now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._set_expiry()

    @property
    def is_used(self) -> bool:
        """Whether a listener uses TLS."""
        return bool(self._contexts)

    def start(self) -> None:
        """Start checking periodically, if a listener uses TLS."""
        if self.is_used:
            self._task = asyncio.create_task(self._run(), name="certificate reload")
            self._task.add_done_callback(self._ended)

    def check_now(self) -> None:
        """Check the files without waiting for the end of the interval."""
        # An error is logged again for the operator, and its end is still noticed.
        self._failures = dict.fromkeys(self._failures, "")
        self._now.set()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash("certificate reload", error)

    async def _run(self) -> None:
        nap_ms = min(each.settings.ssl_reload_interval_ms for each in self._contexts)
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._now.wait(), nap_ms / 1000)
            self._now.clear()
            outcomes = await asyncio.to_thread(_reload_all, self._contexts)
            for contexts, outcome in zip(self._contexts, outcomes, strict=True):
                self._note(contexts, outcome)
            self._set_expiry()

    def _note(self, contexts: TlsContexts, outcome: bool | ConfigurationError) -> None:
        if isinstance(outcome, ConfigurationError):
            self._metrics.tls_reload_failures += 1
            text = str(outcome)
            if self._failures.get(contexts) != text:
                self._failures[contexts] = text
                logger.error("keeping the previous certificate: %s", text)
            return
        has_failed = self._failures.pop(contexts, None) is not None
        if outcome:
            self._metrics.tls_reloads += 1
            logger.info("listener %s: loaded the changed certificate files", contexts.label)
        elif has_failed:
            logger.info("listener %s: the certificate files are valid again", contexts.label)

    def _set_expiry(self) -> None:
        found = [each.material.not_after.timestamp() for each in self._contexts]
        self._metrics.tls_certificate_expiry_seconds = min(found, default=0)


def _reload_all(contexts: Sequence[TlsContexts]) -> list[bool | ConfigurationError]:
    outcomes: list[bool | ConfigurationError] = []
    for each in contexts:
        try:
            outcomes.append(each.reload())
        except ConfigurationError as error:
            outcomes.append(error)
    return outcomes


def _printable(text: str) -> str:
    """Replace the control characters in a log message, which could forge log lines."""
    return "".join(each if each.isprintable() else "?" for each in text)
