"""What `strandlog doctor` says about certificates, logins and permissions."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import CommandLine

import strandlog
from strandlog import Acl
from strandlog.cli.security.certificate_folder import CertificateFolder
from strandlog.cli.security.certificates import moment
from strandlog.clock import SystemClock

SASL_SSL = "listeners=SASL_SSL://0.0.0.0:9093"


def report(cli: CommandLine, *settings: str, code: int = 0) -> dict[str, dict[str, Any]]:
    options = [f"--set={each}" for each in settings]
    document = cli.inside("doctor", str(cli.data), *options, "--json", code=code).document
    return {check["name"]: check for check in document["checks"]}


def keystore(folder: Path, *, age_days: int = 0) -> str:
    """Create certificates that were made some days ago for a year; return the setting."""
    now = moment(SystemClock().now_ms()) - timedelta(days=age_days)
    CertificateFolder(str(folder), now, 365, force=False).init([], [])
    return f"ssl.keystore.location={folder}/server.pem"


def test_a_broker_that_is_well_protected_has_no_warnings(cli: CommandLine, tmp_path: Path) -> None:
    with strandlog.open(cli.data) as log:
        log.set_password("admin", "secret")
        log.create_acls([Acl.allow("User:alice", "READ", topic="t")])
    found = report(
        *(cli, SASL_SSL, keystore(tmp_path / "certs")),
        *("authorizer.class.name=strandlog", "super.users=User:admin"),
    )
    assert found["certificate"]["verdict"] == "ok"
    assert "CN=localhost expires on" in found["certificate"]["seen"]
    assert found["private key"]["verdict"] == "ok"
    assert found["authentication"]["seen"].startswith(
        "listeners for other machines require a login"
    )
    assert found["permissions"]["seen"] == "1 user, 1 rule, authorizer on"


def test_listeners_with_one_keystore_and_different_cas_are_both_checked(
    cli: CommandLine, tmp_path: Path
) -> None:
    found = report(
        *(cli, "listeners=A://127.0.0.1:9093,B://127.0.0.1:9094", keystore(tmp_path / "certs")),
        "listener.security.protocol.map=A:SSL,B:SSL",
        "listener.name.b.ssl.truststore.certificates=nonsense",
        code=1,
    )
    assert found["certificate"]["verdict"] == "fail"


@pytest.mark.parametrize(
    ("age_days", "verdict", "text"),
    [(330, "ok", "expires on"), (340, "warn", ", in 2"), (366, "fail", "it has expired")],
)
def test_a_certificate_that_expires_soon(
    cli: CommandLine, tmp_path: Path, age_days: int, verdict: str, text: str
) -> None:
    setting = keystore(tmp_path / "certs", age_days=age_days)
    found = report(cli, SASL_SSL, setting, code=int(verdict == "fail"))["certificate"]
    assert found["verdict"] == verdict
    assert text in found["seen"]
    if verdict != "ok":
        assert "tls init DIR --force" in found["advice"]


def test_a_ca_of_clients_that_expires_counts_as_well(cli: CommandLine, tmp_path: Path) -> None:
    keystore(tmp_path / "old", age_days=3640)
    found = report(
        *(cli, SASL_SSL, keystore(tmp_path / "certs")),
        f"ssl.truststore.location={tmp_path}/old/ca.pem",
    )["certificate"]
    assert (found["verdict"], "development CA expires" in found["seen"]) == ("warn", True)


@pytest.mark.parametrize(
    ("age_days", "certificate"), [(0, "ok"), (340, "warn"), (366, "fail"), (None, "fail")]
)
def test_a_key_that_other_users_can_read_is_reported_whatever_its_certificate_is(
    cli: CommandLine, tmp_path: Path, age_days: int | None, certificate: str
) -> None:
    setting = keystore(tmp_path / "certs", age_days=age_days or 0)
    path = tmp_path / "certs" / "server.pem"
    path.chmod(0o640)
    if age_days is None:
        path.write_text("nothing")
    found = report(cli, SASL_SSL, setting, code=int(certificate == "fail"))
    assert found["certificate"]["verdict"] == certificate
    key = found["private key"]
    assert (key["verdict"], key["advice"]) == ("warn", f"chmod 600 {path}")
    path.unlink()
    assert "private key" not in report(cli, SASL_SSL, setting, code=1)


def test_a_keystore_that_cannot_be_loaded(cli: CommandLine, tmp_path: Path) -> None:
    setting = keystore(tmp_path / "certs")
    (tmp_path / "certs" / "server.pem").write_text("nothing")
    assert report(cli, SASL_SSL, setting, code=1)["certificate"]["verdict"] == "fail"
    found = report(cli, SASL_SSL, code=1)
    assert "certificate" not in found, "the settings already say what is missing"
    assert "TLS requires ssl.keystore.location" in found["settings"]["seen"]


def test_each_keystore_is_checked_once(cli: CommandLine, tmp_path: Path) -> None:
    settings = [
        f"listeners={SASL_SSL.partition('=')[2]},SSL://127.0.0.1:9094",
        keystore(tmp_path / "a"),
        f"listener.name.ssl.{keystore(tmp_path / 'b')}",
    ]
    options = [f"--set={each}" for each in settings]
    checks = cli.inside("doctor", *options, "--json").document["checks"]
    seen = [each["seen"] for each in checks if each["name"] == "certificate"]
    assert [text.partition(":")[0] for text in seen] == [
        f"{tmp_path}/a/server.pem",
        f"{tmp_path}/b/server.pem",
    ]


@pytest.mark.parametrize(
    ("settings", "verdict", "text"),
    [
        ([], "ok", "all listeners are on loopback"),
        (["listeners=PLAINTEXT://0.0.0.0:9092"], "fail", "PLAINTEXT://0.0.0.0:9092 is accepted"),
        (
            ["listeners=PLAINTEXT://0.0.0.0:9092", "allow.insecure.listeners=true"],
            "warn",
            "PLAINTEXT://0.0.0.0:9092 is accepted",
        ),
        (["listeners=PLAINTEXT://[::1]:9092"], "ok", "all listeners are on loopback"),
        (["listeners=SASL_PLAINTEXT://:9092"], "warn", "is not encrypted: records, and passwords"),
        (["http.listener=http://0.0.0.0:9095"], "warn", "http://0.0.0.0:9095 is not encrypted"),
        (
            ["http.listener=http://0.0.0.0:9095", "http.authentication=none"],
            "fail",
            "http://0.0.0.0:9095 is accepted without a login",
        ),
    ],
)
def test_listeners_without_a_login_or_encryption(
    cli: CommandLine, settings: list[str], verdict: str, text: str
) -> None:
    found = report(cli, *settings, code=int(verdict == "fail"))["authentication"]
    assert (found["verdict"], text in found["seen"]) == (verdict, True), found


@pytest.mark.parametrize(("client_auth", "verdict"), [("required", "ok"), ("none", "fail")])
def test_certificates_of_clients_are_a_login(
    cli: CommandLine, tmp_path: Path, client_auth: str, verdict: str
) -> None:
    found = report(
        *(cli, "listeners=SSL://0.0.0.0:9093", keystore(tmp_path / "certs")),
        *(f"ssl.client.auth={client_auth}", f"ssl.truststore.location={tmp_path}/certs/ca.pem"),
        code=int(verdict == "fail"),
    )
    assert found["authentication"]["verdict"] == verdict


def test_users_and_rules_without_an_authorizer(cli: CommandLine) -> None:
    with strandlog.open(cli.data) as log:
        assert "no users, rules or authorizer" in report(cli)["permissions"]["seen"]
        log.set_password("admin", "secret")
        log.set_password("gone", "secret")
        log.delete_user("gone")
        log.flush()
        found = report(cli)["permissions"]  # while this process owns the folder
    assert found["verdict"] == "warn"
    assert found["seen"] == "1 user, 0 rules, but no authorizer: every client may do everything"
    found = report(cli, "authorizer.class.name=strandlog")["permissions"]
    assert "no client may do anything" in found["seen"]
    found = report(cli, "authorizer.class.name=strandlog", "super.users=User:admin")
    assert found["permissions"]["verdict"] == "ok"


def test_a_folder_without_a_log_has_no_permissions_to_check(cli: CommandLine) -> None:
    assert "permissions" not in report(cli)
