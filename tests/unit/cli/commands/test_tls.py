"""`strandlog tls`: the certificates work in real handshakes, and no file is half written."""

from __future__ import annotations

import os
import shlex
import ssl
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store
from tests.support.command_line import CommandLine

from strandlog.cli.security import key_files
from strandlog.cli.security.certificate_folder import CertificateFolder
from strandlog.cli.security.certificates import load_certificates, moment
from strandlog.clock import SystemClock
from strandlog.errors import SecurityFileError, StorageError
from strandlog.storage.files import DiskFiles


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return tmp_path / "certs"


def certificate(path: Path) -> x509.Certificate:
    return load_certificates(path.read_bytes(), str(path))[0]


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Connect two contexts in memory; raises ssl.SSLError if one does not accept the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not waiting:
            return ends[1], ends[0]
    raise AssertionError("the handshake does not end")


def contexts(certs: Path, client_file: str | None = None) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certs / "server.pem")
    client = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    if client_file is not None:
        server.load_verify_locations(certs / "ca.pem")
        server.verify_mode = ssl.CERT_REQUIRED
        client.load_cert_chain(certs / client_file)
    return server, client


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "broker.example", "10.1.2.3"])
def test_a_client_that_trusts_the_ca_accepts_the_server_under_every_name(
    cli: CommandLine, certs: Path, host: str
) -> None:
    cli.inside("tls", "init", str(certs), "--host", "broker.example", "--host", "10.1.2.3")
    handshake(*contexts(certs), host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(*contexts(certs), "other.example")


def test_a_client_certificate_identifies_the_client(cli: CommandLine, certs: Path) -> None:
    cli.inside("tls", "init", str(certs), "--client", "alice")
    server, _ = handshake(*contexts(certs, "alice.pem"), "localhost")
    found = server.getpeercert()
    assert found is not None and found["subject"] == ((("commonName", "alice"),),)


def test_a_server_certificate_is_no_client_certificate(cli: CommandLine, certs: Path) -> None:
    cli.inside("tls", "init", str(certs), "--client", "alice")
    authority = certificate(certs / "ca.pem")
    verifier = PolicyBuilder().store(Store([authority])).build_client_verifier()
    with pytest.raises(x509.verification.VerificationError):
        verifier.verify(certificate(certs / "server.pem"), [])
    server, client = contexts(certs)
    server.load_cert_chain(certs / "alice.pem")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(server, client, "localhost")


def test_the_extensions_are_those_of_a_ca_and_its_certificates(
    cli: CommandLine, certs: Path
) -> None:
    cli.inside("tls", "init", str(certs))
    authority, server = certificate(certs / "ca.pem"), certificate(certs / "server.pem")
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (
        True,
        True,
        0,
    )
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical and usage.value.key_cert_sign and not usage.value.digital_signature
    own = server.extensions.get_extension_for_class(x509.KeyUsage)
    assert own.critical and own.value.digital_signature and not own.value.key_cert_sign
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.serial_number != server.serial_number
    key = load_pem_private_key((certs / "server.pem").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1"
    assert b"BEGIN PRIVATE KEY" in (certs / "server.pem").read_bytes()  # PKCS#8


def test_only_the_owner_can_read_the_keys(cli: CommandLine, certs: Path) -> None:
    before = os.umask(0)
    try:
        cli.inside("tls", "init", str(certs), "--client", "alice")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in certs.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "server.pem": 0o600, "alice.pem": 0o600}


# -- running it again --------------------------------------------------------------------------


def test_running_it_again_adds_a_client_and_keeps_the_rest(cli: CommandLine, certs: Path) -> None:
    cli.inside("tls", "init", str(certs), "--host", "b.example")
    before = {path.name: path.read_bytes() for path in certs.iterdir()}
    files = cli.inside("tls", "init", str(certs), "--client", "bob", "--json").document["files"]
    assert [(Path(row["file"]).name, row["status"]) for row in files] == [
        ("ca.pem", "kept"),
        ("server.pem", "kept"),
        ("bob.pem", "created"),
    ]
    assert {name: (certs / name).read_bytes() for name in before} == before
    handshake(*contexts(certs, "bob.pem"), "b.example")


def test_nothing_is_overwritten_without_force(cli: CommandLine, certs: Path) -> None:
    cli.inside("tls", "init", str(certs), "--client", "bob")
    before = {path.name: path.read_bytes() for path in certs.iterdir()}
    found = cli.inside("tls", "init", str(certs), "--client", "eve", "--client", "bob", code=1)
    assert "bob.pem exists: add --force to renew it" in found.err
    found = cli.inside("tls", "init", str(certs), "--host", "new.example", code=1)
    assert "server.pem exists and is not valid for new.example: add --force" in found.err
    assert {path.name: path.read_bytes() for path in certs.iterdir()} == before


def test_force_renews_from_the_same_ca_and_keeps_the_names(cli: CommandLine, certs: Path) -> None:
    cli.inside("tls", "init", str(certs), "--host", "10.1.2.3", "--client", "bob")
    authority = (certs / "ca.pem").read_bytes()
    old = certificate(certs / "server.pem")
    cli.inside(
        "tls",
        "init",
        str(certs),
        "--force",
        "--host",
        "b.example",
        "--client",
        "bob",
        "--days",
        "9",
    )
    assert (certs / "ca.pem").read_bytes() == authority
    new = certificate(certs / "server.pem")
    assert new.serial_number != old.serial_number
    assert new.public_key() != old.public_key()
    handshake(*contexts(certs, "bob.pem"), "b.example")
    handshake(*contexts(certs, "bob.pem"), "10.1.2.3")


def test_a_crash_leaves_a_folder_that_the_next_run_completes(
    cli: CommandLine, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail the n-th write, then run again without the failure."""
    real = DiskFiles.replace
    for survived in range(4):
        folder = certs / str(survived)
        writes = 0

        def replace(self: DiskFiles, path: str, data: bytes, last: int = survived) -> None:
            nonlocal writes
            if writes == last:
                raise StorageError("the power is gone")
            writes += 1
            real(self, path, data)

        with monkeypatch.context() as patch:
            patch.setattr(DiskFiles, "replace", replace)
            cli.inside("tls", "init", str(folder), "--client", "bob", code=1)
        cli.inside("tls", "init", str(folder), "--client", "bob")
        handshake(*contexts(folder, "bob.pem"), "localhost")


def test_a_ca_without_its_key_cannot_sign(cli: CommandLine, certs: Path) -> None:
    cli.inside("tls", "init", str(certs))
    (certs / "ca.key").unlink()
    found = cli.inside("tls", "init", str(certs), "--client", "bob", code=1)
    assert "ca.key is missing" in found.err and "restore it" in found.err
    cli.inside("tls", "init", str(certs / "other"))
    os.replace(certs / "other" / "ca.key", certs / "ca.key")
    found = cli.inside("tls", "init", str(certs), "--client", "bob", code=1)
    assert "is not the key of" in found.err


def test_a_server_certificate_of_another_ca_is_replaced_only_by_force(
    cli: CommandLine, certs: Path
) -> None:
    cli.inside("tls", "init", str(certs))
    cli.inside("tls", "init", str(certs / "other"), "--host", "b.example")
    os.replace(certs / "other" / "server.pem", certs / "server.pem")
    found = cli.inside("tls", "init", str(certs), "--client", "bob", code=1)
    assert "ca.pem did not sign it: add --force to replace it" in found.err
    assert not (certs / "bob.pem").exists()
    cli.inside("tls", "init", str(certs), "--client", "bob", "--force")
    handshake(*contexts(certs, "bob.pem"), "b.example")


def test_certificates_expire_no_later_than_their_ca(certs: Path) -> None:
    now = moment(SystemClock().now_ms())
    CertificateFolder(str(certs), now, 1, force=False).init([], [])
    late = now + timedelta(days=3600)
    CertificateFolder(str(certs), late, 365, force=False).init([], ["bob"])
    authority = certificate(certs / "ca.pem")
    assert certificate(certs / "bob.pem").not_valid_after_utc == authority.not_valid_after_utc
    after = now + timedelta(days=3651)
    with pytest.raises(SecurityFileError, match="expired on"):
        CertificateFolder(str(certs), after, 365, force=False).init([], ["eve"])


# -- arguments and output ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--host", "a b"], "'a b' is neither a host name nor an IP address"),
        (["--host", "https://a"], "is neither a host name nor an IP address"),
        (["--client", "../x"], "is not a valid name"),
        (["--client", "CA"], "choose another name"),
        (["--days", "0"], "not in the range 1<=x<=3650"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    cli: CommandLine, certs: Path, arguments: list[str], reason: str
) -> None:
    assert reason in cli.inside("tls", "init", str(certs), *arguments, code=2).err
    assert not certs.exists()


def test_init_prints_the_commands_that_come_next(cli: CommandLine, certs: Path) -> None:
    found = cli.inside("tls", "init", str(certs))
    assert "strandlog user add admin -d ./data --output admin.password\n" in found.err
    assert "sasl.password=${file:admin.password}" in found.err
    assert "--set listeners=SASL_SSL://127.0.0.1:9093" in found.err
    assert f"--set ssl.keystore.location={certs}/server.pem" in found.err


def test_init_does_not_make_a_client_a_super_user(cli: CommandLine, certs: Path) -> None:
    found = cli.inside("tls", "init", str(certs), "--client", "alice")
    assert "--set ssl.client.auth=required" in found.err
    assert f"ssl.certificate.location={certs}/alice.pem" in found.err
    assert "super.users" not in found.err
    allow = next(line for line in found.err.splitlines() if "strandlog acl add" in line)
    _, *words = shlex.split(allow.replace("./data", str(certs.parent / "data")))
    rules = cli.inside(*words, "--json").document
    assert "User:CN=alice" in str(rules) and "orders" in str(rules)


def test_init_prints_the_long_hint_only_once(cli: CommandLine, certs: Path) -> None:
    assert "Start a broker" in cli.inside("tls", "init", str(certs)).err
    again = cli.inside("tls", "init", str(certs), "--client", "bob").err
    assert "Start a broker" not in again
    assert "strandlog acl add -d ./data --principal User:CN=bob" in again
    renewed = cli.inside("tls", "init", str(certs), "--force").err
    assert (
        renewed.strip() == "A running broker loads a renewed server certificate without a restart."
    )


def test_show_describes_every_certificate_of_a_file(cli: CommandLine, certs: Path) -> None:
    cli.inside("tls", "init", str(certs), "--host", "b.example", "--days", "3")
    found = cli.inside("tls", "show", str(certs / "server.pem"))
    assert found.lines[0].split() == [
        *("SUBJECT", "PURPOSE", "NAMES", "EXPIRES", "DAYS", "LEFT", "ISSUER")
    ]
    assert "CN=b.example" in found.lines[1] and "localhost" in found.lines[1]
    assert "warning: CN=b.example expires in" in found.err
    document = cli.inside("tls", "show", str(certs / "server.pem"), "--json").document
    assert document["has_private_key"] is True
    first, second = document["certificates"]
    assert first["names"] == ["b.example", "localhost", "127.0.0.1", "::1"]
    assert (first["purpose"], second["purpose"]) == ("server", "CA")
    assert 1 <= first["days_left"] <= 3


def test_show_warns_of_a_certificate_that_expires_in_1_day(cli: CommandLine, certs: Path) -> None:
    made = moment(SystemClock().now_ms()) - timedelta(hours=12)
    CertificateFolder(str(certs), made, 2, force=False).init([], [])
    found = cli.inside("tls", "show", str(certs / "server.pem"))
    assert found.err == "warning: CN=localhost expires in 1 day\n"


def test_show_warns_about_a_key_that_others_can_read(cli: CommandLine, certs: Path) -> None:
    cli.inside("tls", "init", str(certs))
    (certs / "server.pem").chmod(0o644)
    assert "chmod 600" in cli.inside("tls", "show", str(certs / "server.pem")).err


def test_show_of_another_file_says_what_is_wrong(cli: CommandLine, tmp_path: Path) -> None:
    assert "cannot read" in cli.inside("tls", "show", str(tmp_path / "none"), code=1).err
    other = tmp_path / "other"
    other.write_text("no certificate")
    found = cli.inside("tls", "show", str(other), code=1)
    assert "contains no valid certificate in PEM format" in found.err
    with other.open("wb") as file:
        file.truncate(key_files.MAX_FILE_BYTES + 1)
    assert "the maximum is" in cli.inside("tls", "show", str(other), code=1).err


@pytest.mark.parametrize(
    ("module", "command", "package"),
    [("cryptography", "tls", "cryptography"), ("jwt", "token", "pyjwt")],
)
def test_a_missing_security_extra_is_reported_in_one_line(
    tmp_path: Path, module: str, command: str, package: str
) -> None:
    script = (
        f"import sys; sys.modules[{module!r}] = None; "
        f"sys.argv[1:] = [{command!r}, 'init', {str(tmp_path / 'new')!r}]; "
        "import strandlog.__main__ as entry; entry.main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert found.stderr == f"error: {package} is not installed: pip install 'strandlog[security]'\n"
    assert found.returncode == 1
