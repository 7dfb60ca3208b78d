"""Checks the security of a broker with the given settings: certificates, logins and permissions.

    certificate      whether each TLS listener can load its key and certificates, and when these
                     expire
    private key      whether other users can read the file with the key
    authentication   whether clients on other machines can use a listener without a login, or send
                     passwords and records unencrypted
    permissions      whether the authorizer is off although there are users or rules, or allows
                     nothing

The permission check reads users and rules from the files in the folder, even while a broker owns
it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import strandlog
from strandlog.broker.access.access import SECURITY_TOPIC
from strandlog.cli.doctor.network import is_loopback
from strandlog.cli.doctor.result import Check, fail, ok, warn
from strandlog.cli.security.key_files import others_can_read
from strandlog.config.exposure import exposed_endpoints
from strandlog.config.resolve import Configuration
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.server import Endpoint, ServerSettings
from strandlog.config.tables.tls import TlsSettings, for_listener
from strandlog.config.units import counted
from strandlog.errors import (
    ConfigurationError,
    DataError,
    MissingExtraError,
    StrandlogError,
    TopicNotFoundError,
)
from strandlog.protocol.security_records import AclRecord, CredentialKey, SecurityKey, decode_key

WARN_DAYS = 30
POLL_RECORDS = 5_000
SECURE_IT = (
    "use SASL_SSL (or https, grpcs): 'strandlog tls init DIR' creates certificates, and "
    "'strandlog user add NAME -d DATA' adds users"
)


def check_security(
    configuration: Configuration, folder: str | None, now: datetime
) -> Iterator[Check]:
    """Run the security checks. Skip the listener checks if the settings are invalid, and the
    permission check without a folder."""
    settings = configuration.broker_settings()
    server = configuration.server
    if server is not None and not configuration.problems:
        own = configuration.listener_overrides()
        listeners = [
            Protected(each, for_listener(settings, own.get(each.label.lower(), {}), each.protocol))
            for each in _endpoints(server)
        ]
        yield from _check_certificates(listeners, now)
        yield check_authentication(listeners, settings)
    if folder is not None:
        stored = _stored_keys(folder)
        if isinstance(stored, Check):
            yield stored
        else:
            yield check_permissions(stored, settings)


class Protected(NamedTuple):
    """A listener and its TLS settings."""

    endpoint: Endpoint
    tls: TlsSettings


def _endpoints(server: ServerSettings) -> list[Endpoint]:
    return [*server.kafka, *(each for each in (server.grpc, server.http) if each is not None)]


# -- certificates ------------------------------------------------------------------------------


def _check_certificates(listeners: list[Protected], now: datetime) -> Iterator[Check]:
    """Check each combination of keys and certificates once, however many listeners use it."""
    used: dict[tuple[str, ...], list[Protected]] = {}
    for each in listeners:
        if each.endpoint.uses_tls:
            tls = each.tls
            stores = (
                tls.ssl_keystore_location,
                tls.ssl_keystore_key,
                tls.ssl_keystore_certificate_chain,
                tls.ssl_key_password,
                tls.ssl_truststore_location,
                tls.ssl_truststore_certificates,
            )
            used.setdefault(stores, []).append(each)
    for some in used.values():
        yield check_certificate(some[0].tls, now)
        path = some[0].tls.ssl_keystore_location
        if path and os.path.exists(path):
            yield check_key_file(path)


def check_certificate(tls: TlsSettings, now: datetime) -> Check:
    """Load a key and its certificates as the broker does; check their expiry."""
    name = "certificate"
    try:
        from strandlog.cli.security.certificates import describe, load_certificates  # noqa: PLC0415
        from strandlog.server.network.certificates import load, read_stores  # noqa: PLC0415

        stores = read_stores(tls)
        load(stores, tls.ssl_key_password, now)
        found = [describe(each) for each in load_certificates(stores.chain, stores.names[1])]
        if stores.authorities:
            found += map(describe, load_certificates(stores.authorities, stores.names[2]))
    except ConfigurationError as error:
        return fail(name, str(error), "TLS listeners do not start without it")
    except (ImportError, MissingExtraError) as error:
        return fail(name, str(error), "pip install 'strandlog[security]'")
    path = tls.ssl_keystore_location
    first = min(found, key=lambda each: each.expires)
    left = first.days_left(now)
    seen = f"{path or found[0].subject}: {first.subject} expires on {first.expires:%Y-%m-%d}"
    renew = (
        "replace the file with a new certificate; the broker loads it without a restart. "
        "'strandlog tls init DIR --force' renews certificates that it created"
    )
    if left < 0:
        return fail(name, f"{seen}: it has expired", renew)
    if left < WARN_DAYS:
        return warn(name, f"{seen}, in {counted(left, 'day')}", renew)
    return ok(name, seen)


def check_key_file(path: str) -> Check:
    """Check the mode of a file with a private key, whether or not the key can be used."""
    name = "private key"
    if others_can_read(path):
        advice = f"chmod 600 {shlex.quote(path)}"
        return warn(name, f"other users can read the private key in {path}", advice)
    return ok(name, f"other users cannot read {path}")


# -- logins ------------------------------------------------------------------------------------


def check_authentication(listeners: list[Protected], settings: BrokerSettings) -> Check:
    """Check which listeners let other machines in without a login or without encryption."""
    name = "authentication"
    remote = [each for each in listeners if not is_loopback(each.endpoint.address.host)]
    if exposed := exposed_endpoints(listeners, settings):
        where = ", ".join(map(str, exposed))
        text = f"every client that reaches {where} is accepted without a login"
        if settings.allow_insecure_listeners:
            return warn(name, text, SECURE_IT)
        return fail(name, f"{text}; 'serve' does not start without --insecure", SECURE_IT)
    readable = [str(each.endpoint) for each in remote if not each.endpoint.uses_tls]
    if readable:
        text = f"{', '.join(readable)} is not encrypted: records, and passwords of PLAIN or HTTP"
        return warn(name, f"{text} clients, can be read on the network", SECURE_IT)
    if remote:
        return ok(name, "listeners for other machines require a login, over TLS")
    return ok(name, "all listeners are on loopback, for clients on this machine only")


# -- permissions -------------------------------------------------------------------------------


def _stored_keys(folder: str) -> set[SecurityKey] | Check:
    """Return the keys of the security records as of the last flush, or a check that says why they
    cannot be read."""
    keys: set[SecurityKey] = set()
    try:
        with strandlog.read(folder) as log, log.consumer([SECURITY_TOPIC]) as consumer:
            while records := consumer.poll(POLL_RECORDS):
                for record in records:
                    key = decode_key(record.key or b"")
                    (keys.discard if record.value is None else keys.add)(key)
    except TopicNotFoundError:
        return keys
    except DataError as error:
        return warn(
            "permissions", f"{SECURITY_TOPIC} cannot be read: {error}", "see the broker's log"
        )
    except StrandlogError as error:
        return fail("permissions", str(error), "allow this user to read the folder")
    return keys


def check_permissions(stored: set[SecurityKey], settings: BrokerSettings) -> Check:
    """Check whether the authorizer is off although there are users or rules, or allows nothing."""
    name = "permissions"
    users = len({key.user for key in stored if isinstance(key, CredentialKey)})
    rules = sum(isinstance(key, AclRecord) for key in stored)
    seen = f"{counted(users, 'user')}, {counted(rules, 'rule')}"
    if not settings.has_authorizer:
        if users or rules:
            return warn(
                name,
                f"{seen}, but no authorizer: every client may do everything",
                "set authorizer.class.name=strandlog and super.users=User:NAME",
            )
        return ok(name, "no users, rules or authorizer: every client may do everything")
    if not rules and not settings.super_user_names and not settings.allow_everyone_if_no_acl_found:
        return warn(
            name,
            f"{seen} and no super.users: no client may do anything",
            "set super.users=User:NAME, or add rules with 'strandlog acl add -d DATA'",
        )
    return ok(name, f"{seen}, authorizer on")
