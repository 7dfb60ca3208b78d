"""Loading keys and certificates, errors for unusable ones, and subjects as Kafka writes them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID, ObjectIdentifier
from tests.support.certificates import Authority, subject

from strandlog.config.tables.tls import TlsSettings
from strandlog.errors import ConfigurationError
from strandlog.server.network.certificates import KeyMaterial, load, read_stores, subject_text

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def _load(settings: TlsSettings, now: datetime = NOW) -> KeyMaterial:
    return load(read_stores(settings), settings.ssl_key_password, now)


def _error(settings: TlsSettings) -> str:
    with pytest.raises(ConfigurationError) as caught:
        _load(settings)
    return str(caught.value)


def test_key_and_chain_come_from_one_file(authority: Authority) -> None:
    issued = authority.issue("server")
    found = _load(TlsSettings(ssl_keystore_location=str(issued.store)))
    assert found.private_key == issued.key.read_bytes()
    assert found.chain == issued.certificate.read_bytes()
    assert (found.authorities, found.warnings) == (b"", ())


def test_a_key_in_the_settings_may_have_spaces_instead_of_line_ends(authority: Authority) -> None:
    issued = authority.issue("server")
    found = _load(
        TlsSettings(
            ssl_keystore_key=issued.key.read_text().replace("\n", " "),
            ssl_keystore_certificate_chain=issued.certificate.read_text().replace("\n", " \n "),
            ssl_truststore_certificates=authority.path.read_text().replace("\n", ""),
        )
    )
    assert found.private_key == issued.key.read_bytes()
    assert found.chain == issued.certificate.read_bytes()
    assert found.authorities == authority.path.read_bytes()


def test_an_encrypted_key_needs_its_password(authority: Authority) -> None:
    store = str(authority.issue("server", password="right").store)
    found = _load(TlsSettings(ssl_keystore_location=store, ssl_key_password="right"))
    assert b"ENCRYPTED" not in found.private_key
    assert "set ssl.key.password" in _error(TlsSettings(ssl_keystore_location=store))
    wrong = _error(TlsSettings(ssl_keystore_location=store, ssl_key_password="wrong-one"))
    assert "ssl.key.password does not decrypt the private key" in wrong
    assert "wrong-one" not in wrong


def test_a_key_in_the_older_format_of_openssl_is_accepted(authority: Authority) -> None:
    issued = authority.issue("server")
    key = load_pem_private_key(issued.key.read_bytes(), None)
    old = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    issued.store.write_bytes(old + issued.certificate.read_bytes())
    assert _load(TlsSettings(ssl_keystore_location=str(issued.store))).private_key


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    text = _error(TlsSettings(ssl_keystore_location=str(tmp_path / "none.pem")))
    assert text.startswith(f"ssl.keystore.location {tmp_path / 'none.pem'}: cannot read the file")


@pytest.mark.parametrize(
    ("content", "command"), [(b"\xfe\xed\xfe\xed....", "keytool"), (b"\x30\x82....", "openssl")]
)
def test_a_store_in_another_format_gets_the_command_that_converts_it(
    tmp_path: Path, content: bytes, command: str
) -> None:
    file = tmp_path / "store"
    file.write_bytes(content)
    text = _error(TlsSettings(ssl_keystore_location=str(file)))
    assert "not PEM; convert it" in text
    assert command in text
    assert str(file) in text


def test_a_key_that_does_not_match_is_an_error(authority: Authority, tmp_path: Path) -> None:
    one, other = authority.issue("one"), authority.issue("other")
    mixed = tmp_path / "mixed.pem"
    mixed.write_bytes(one.key.read_bytes() + other.certificate.read_bytes())
    text = _error(TlsSettings(ssl_keystore_location=str(mixed)))
    assert "the private key does not match the first certificate (CN=other)" in text
    mixed.write_bytes(
        one.key.read_bytes() + other.certificate.read_bytes() + one.certificate.read_bytes()
    )
    assert "must come before" in _error(TlsSettings(ssl_keystore_location=str(mixed)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "expected one PEM block PRIVATE KEY, found 0"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cannot be parsed"),
    ],
)
def test_a_file_without_a_usable_key_is_an_error(
    tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "store.pem"
    file.write_bytes(content)
    assert words in _error(TlsSettings(ssl_keystore_location=str(file)))


def test_a_file_without_a_usable_certificate_is_an_error(authority: Authority) -> None:
    issued = authority.issue("server")
    settings = TlsSettings(ssl_keystore_location=str(issued.key))
    assert "at least one PEM block CERTIFICATE" in _error(settings)
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    issued.key.write_bytes(issued.key.read_bytes() + broken)
    assert "a certificate cannot be parsed" in _error(settings)


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("a003020102", "a003020107"),  # the version
        ("2a8648ce3d030107", "2a8648ce3d030163"),  # the curve of the key
    ],
)
def test_a_certificate_that_is_not_supported_is_an_error(
    authority: Authority, part: str, changed: str
) -> None:
    """Any other exception would stop a broker that reloads the file."""
    issued = authority.issue("server")
    strange = issued.der.replace(bytes.fromhex(part), bytes.fromhex(changed))
    with issued.store.open("ab") as file:
        file.write(ssl.DER_cert_to_PEM_cert(strange).encode())
    assert "a certificate" in _error(TlsSettings(ssl_keystore_location=str(issued.store)))


def test_an_expired_certificate_is_a_warning(authority: Authority) -> None:
    store = str(authority.issue("old", expired=True).store)
    [warning] = _load(TlsSettings(ssl_keystore_location=store)).warnings
    assert "CN=old expired on" in warning
    store = str(authority.issue("new").store)
    [warning] = _load(TlsSettings(ssl_keystore_location=store), NOW - timedelta(days=30)).warnings
    assert "CN=new is not valid before" in warning


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([(NameOID.ORGANIZATION_NAME, "y"), (NameOID.COMMON_NAME, "Carol")], "CN=Carol,O=y"),
        ([(NameOID.COMMON_NAME, "a,CN=admin")], r"CN=a\,CN\=admin"),
        ([(NameOID.COMMON_NAME, "admin"), (NameOID.COMMON_NAME, "bob")], "CN=bob,CN=admin"),
        ([(NameOID.COMMON_NAME, " a b ")], r"CN=\ a b\ "),
        ([(NameOID.COMMON_NAME, '#x+"<>;\\')], r"CN=\#x\+\"\<\>\;\\"),
        ([(NameOID.COMMON_NAME, "Zoë 漢")], "CN=Zoë 漢"),
        ([(NameOID.COMMON_NAME, "nul\0x")], r"CN=nul\00x"),
        (
            [(NameOID.COMMON_NAME, "x"), (NameOID.EMAIL_ADDRESS, "a@b")],
            "1.2.840.113549.1.9.1=#1603614062,CN=x",
        ),
        (
            [
                (NameOID.DOMAIN_COMPONENT, "example"),
                (NameOID.USER_ID, "u1"),
                (NameOID.STREET_ADDRESS, "s t"),
            ],
            "STREET=s t,UID=u1,DC=example",
        ),
    ],
)
def test_a_subject_is_written_as_java_writes_it(
    authority: Authority, parts: list[tuple[ObjectIdentifier, str]], text: str
) -> None:
    """The expected texts are those of Java's X500Principal.getName for the same certificates."""
    assert subject_text(authority.issue(subject(*parts)).der) == text
