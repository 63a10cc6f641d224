"""Which certificates, keys and authorities a server takes, and what happens when they change."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from headrace.runtime.errors import InvalidArgument
from headrace.server.access.watched import Watcher
from headrace.server.transport.tls import ServerTls, read_certificate
from tests.support.certificates import Authority, Pair

AUTHORITY = Authority()
GOOD = AUTHORITY.server()
NAMES = ("a.crt", "a.key", "ca.crt")
HOUR = timedelta(hours=1)


def encrypted(pair: Pair) -> bytes:
    key = load_pem_private_key(pair.key, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def pem(key: ed25519.Ed25519PrivateKey | dsa.DSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_good_certificate_says_when_it_expires() -> None:
    expires = read_certificate((GOOD.certificate, GOOD.key), NAMES).expires
    left = datetime.fromtimestamp(expires, UTC) - datetime.now(UTC)
    assert timedelta(hours=23) < left <= timedelta(days=1)


def test_a_chain_expires_with_its_first_certificate() -> None:
    pair = AUTHORITY.server(until=timedelta(days=365))
    expires = read_certificate((pair.certificate + AUTHORITY.certificate, pair.key), NAMES).expires
    assert datetime.fromtimestamp(expires, UTC) - datetime.now(UTC) < timedelta(days=31)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1()], ids=lambda each: each.name)
def test_elliptic_curves_are_taken(curve: ec.EllipticCurve) -> None:
    pair = AUTHORITY.server(key=ec.generate_private_key(curve))
    assert read_certificate((pair.certificate, pair.key), NAMES).expires


def test_an_rsa_key_of_2048_bits_is_taken() -> None:
    pair = AUTHORITY.server(key=rsa.generate_private_key(65537, 2048))
    assert read_certificate((pair.certificate, pair.key), NAMES).expires


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (lambda: (b"", GOOD.key), "a.crt holds no certificate in PEM form"),
        (lambda: (b"\xff\x00", GOOD.key), "a.crt holds no certificate in PEM form"),
        (lambda: (GOOD.certificate[:-100], GOOD.key), "a.crt holds no certificate in PEM form"),
        (lambda: (GOOD.certificate, b""), "a.key holds no private key in PEM form"),
        (lambda: (GOOD.certificate, GOOD.key[:-80]), "a.key holds no private key in PEM form"),
        (lambda: (GOOD.certificate, GOOD.certificate), "a.key holds no private key"),
        (lambda: (GOOD.certificate, encrypted(GOOD)), "a.key has a password"),
        (
            lambda: (GOOD.certificate, AUTHORITY.server().key),
            "a.key is not the key of the certificate in a.crt",
        ),
        (
            lambda: (GOOD.certificate, pem(ed25519.Ed25519PrivateKey.generate())),
            "a.key is neither an EC key nor an RSA key of at least 2048 bits",
        ),
        (lambda: weak(), "a.key is neither an EC key nor an RSA key of at least 2048 bits"),
        (lambda: valid(until=-HOUR), "a.crt expired on "),
        (lambda: valid(since=HOUR), "a.crt is valid only from "),
        (lambda: (GOOD.certificate, GOOD.key, b"nothing"), "ca.crt holds no certificate"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    contents: Callable[[], tuple[bytes, ...]], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        read_certificate(contents(), NAMES)
    assert "BEGIN" not in str(refused.value)


def weak() -> tuple[bytes, bytes]:
    pair = AUTHORITY.server(key=rsa.generate_private_key(65537, 1024))
    return pair.certificate, pair.key


def valid(since: timedelta = -HOUR, until: timedelta = HOUR) -> tuple[bytes, bytes]:
    pair = AUTHORITY.server(since=since, until=until)
    return pair.certificate, pair.key


def test_http_speaks_no_version_before_1_2_and_no_weak_cipher() -> None:
    context = read_certificate((GOOD.certificate, GOOD.key), NAMES).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert all(each["aead"] for each in context.get_ciphers())
    assert context.verify_mode == ssl.CERT_NONE


def test_with_authorities_of_clients_http_demands_a_certificate() -> None:
    contents = (GOOD.certificate, GOOD.key, AUTHORITY.certificate)
    assert read_certificate(contents, NAMES).context.verify_mode == ssl.CERT_REQUIRED


def test_a_server_does_not_start_with_files_that_do_not_belong_together(tmp_path: Path) -> None:
    certificate, _ = GOOD.write(tmp_path, "one")
    _, key = AUTHORITY.server().write(tmp_path, "other")
    with pytest.raises(InvalidArgument, match=r"other\.key is not the key of") as refused:
        ServerTls(certificate, key, None, Watcher())
    assert refused.value.field == "tls_cert"


class Files:
    """The files of a server, which a test replaces."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = GOOD.write(folder, "server")
        self.watcher = Watcher(0.01)
        self.tls = ServerTls(self.certificate, self.key, None, self.watcher)
        self.first = self.tls.context()

    def replace(self, path: Path, data: bytes) -> None:
        beside = path.with_suffix(".new")
        beside.write_bytes(data)
        beside.replace(path)

    def look(self) -> None:
        """What the watcher's thread does each time."""
        self.tls._files.look()

    def gauges(self) -> dict[str, object]:
        return {each.family.name: each.value for each in self.tls.snapshot()}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_new_certificate_is_used_when_its_key_has_come_too(files: Files) -> None:
    new = AUTHORITY.server(until=timedelta(days=9))
    before = files.gauges()["tls_certificate_expiration_timestamp_seconds"]
    files.replace(files.certificate, new.certificate)
    files.look()
    assert files.tls.context() is files.first
    files.replace(files.key, new.key)
    files.look()
    assert files.tls.context() is not files.first
    after = files.gauges()
    assert after["tls_certificate_expiration_timestamp_seconds"] != before
    assert after["tls_files_stale"] == 0.0


@pytest.mark.parametrize(
    "new", [b"", b"broken", AUTHORITY.server(until=-HOUR).certificate], ids=["", "broken", "late"]
)
def test_a_bad_new_file_keeps_the_old_state_and_is_logged_once_by_name(
    files: Files, new: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    files.replace(files.certificate, new)
    for _ in range(5):
        files.look()
    assert files.tls.context() is files.first
    assert files.gauges()["tls_files_stale"] == 1.0
    (record,) = (each for each in caplog.records if each.levelname == "ERROR")
    assert "server.crt" in record.getMessage()
    assert "last good state" in record.getMessage()
    files.replace(files.certificate, GOOD.certificate)
    files.look()
    assert files.gauges()["tls_files_stale"] == 0.0


def test_a_file_that_is_gone_keeps_the_old_state(files: Files) -> None:
    files.key.unlink()
    for _ in range(2):
        files.look()
    assert files.tls.context() is files.first
    assert files.gauges()["tls_files_stale"] == 1.0
