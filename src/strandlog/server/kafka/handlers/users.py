"""Handlers for logins and users: SaslHandshake, SaslAuthenticate, DescribeUserScramCredentials and
AlterUserScramCredentials.

`server/kafka/sasl.py` implements the steps of a login. On a listener without SASL, SaslHandshake
and SaslAuthenticate get error 34 (ILLEGAL_SASL_STATE). The same happens after a login, unless the
handshake begins a re-authentication.

To create a user, a client sends the salted password, and the broker derives the stored keys from
it. The salted password is enough to log in, so it is accepted only over TLS or from the same
machine (`_check_secrecy`), unless the operator allows insecure listeners.
"""

from __future__ import annotations

from typing import Any

from strandlog.broker.access.acl import normalized_host
from strandlog.broker.access.permission import ALTER, CLUSTER, DESCRIBE
from strandlog.broker.access.users import CredentialDeletion, CredentialUpsertion, Outcomes
from strandlog.broker.broker import Broker
from strandlog.broker.runtime import Work, yield_control
from strandlog.config.authentication import is_loopback
from strandlog.errors import IllegalSaslStateError, PolicyViolationError, StrandlogError
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.request import Request
from strandlog.server.kafka.sasl import SASL_AUTHENTICATED


@kafka_api(
    api.SASL_HANDSHAKE,
    versions=(0, 1),
    requires=[],
    summary="Selects the SASL mechanism.",
    notes=(
        "Begins the login on a SASL listener, or a re-authentication if the session has a "
        "lifetime; otherwise fails with error 34. Tokens after a version 0 handshake have no "
        "header."
    ),
)
def sasl_handshake(broker: Broker, request: Request) -> None:
    del broker
    mechanism = request.body().mechanism
    session = request.connection.sasl
    if session is None:
        request.reply({"error_code": IllegalSaslStateError.kafka_code, "mechanisms": []})
    else:
        session.handshake(request, mechanism)


@kafka_api(
    api.SASL_AUTHENTICATE,
    versions=(0, 2),
    requires=[],
    summary="Carries the tokens of the SASL mechanism.",
    notes=(
        "Without a SaslHandshake request before it, fails with error 34; on a SASL listener before "
        "the login, it closes the connection instead."
    ),
)
def sasl_authenticate(broker: Broker, request: Request) -> None:
    del broker
    token = bytes(request.body().auth_bytes)
    session = request.connection.sasl
    if session is None:
        body = {
            "error_code": IllegalSaslStateError.kafka_code,
            "error_message": SASL_AUTHENTICATED,
        }
        request.reply(body)
    else:
        session.authenticate(request, token)


@kafka_api(
    api.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Lists users with the mechanisms and iterations of their credentials.",
)
def describe_user_scram_credentials(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    names = None if body.users is None else [user.name for user in body.users]
    try:
        found = yield from broker.describe_users(request.context, names)
    except StrandlogError as error:
        denied = {"user": "", "credential_infos": [], **_failure(error)}
        request.reply({**_failure(error), "results": [denied]})
        return
    results = []
    for user in found:
        infos = [
            {"mechanism": int(mechanism), "iterations": iterations}
            for mechanism, iterations in user.iterations.items()
        ]
        results.append({"user": user.name, "credential_infos": infos, **_failure(user.error)})
        yield yield_control
    yield from request.replying({"error_code": 0, "error_message": None, "results": results})


@kafka_api(
    api.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=[ALTER.on(CLUSTER)],
    summary="Creates, changes and deletes users; the response follows when the change is durable.",
    notes=(
        "Credentials are accepted only over TLS or from the same machine, unless "
        "`allow.insecure.listeners` is set."
    ),
)
def alter_user_scram_credentials(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    deletions: list[CredentialDeletion] = []
    upsertions: list[CredentialUpsertion] = []
    for row in body.deletions:
        deletions.append(CredentialDeletion(row.name, row.mechanism))
        yield yield_control
    for row in body.upsertions:
        salt, salted = bytes(row.salt), bytes(row.salted_password)
        upsertions.append(
            CredentialUpsertion(row.name, row.mechanism, row.iterations, salt, salted)
        )
        yield yield_control

    def failed(error: StrandlogError) -> None:
        names = [*(each.user for each in deletions), *(each.user for each in upsertions)]
        request.in_slices(_reply(request, dict.fromkeys(names, error)))

    try:
        if upsertions:
            broker.check_access(request.context, ALTER.on(CLUSTER))
            _check_secrecy(broker, request)
    except StrandlogError as error:
        failed(error)
        return
    altering = broker.alter_users(request.context, deletions, upsertions)
    request.when_done(
        altering,
        lambda outcomes: request.in_slices(_reply(request, outcomes)),
        failed,
        in_line=True,
    )


def _reply(request: Request, outcomes: Outcomes) -> Work[None]:
    rows = []
    for user, error in outcomes.items():
        rows.append({"user": user, **_failure(error)})
        yield yield_control
    yield from request.replying({"results": rows})


def _check_secrecy(broker: Broker, request: Request) -> None:
    """Raise an error if the network between client and broker could read the request, unless
    allow.insecure.listeners is set."""
    connection = request.connection
    if not (
        connection.listener.uses_tls
        or is_loopback(normalized_host(connection.peer_host))
        or broker.settings.allow_insecure_listeners
    ):
        raise PolicyViolationError(
            "passwords can be set only over TLS or from the broker's machine, because the request "
            "would reveal them: use a listener with SSL or SASL_SSL"
        )


def _failure(error: StrandlogError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": 0, "error_message": None}
    return {"error_code": error.kafka_code, "error_message": str(error)}
