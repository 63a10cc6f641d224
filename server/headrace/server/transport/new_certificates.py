"""``headrace tls new``: a certificate authority and a server's certificate, for trying TLS.

The authority's key is not kept, so nobody can sign a second certificate with it.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.runtime.errors import AlreadyExists, HeadraceError, InvalidArgument

app = typer.Typer(help="Make certificates.", no_args_is_help=True)

FILES: Final = ("ca.crt", "server.crt", "server.key")
HOSTS: Final = ("localhost", "127.0.0.1", "::1")
MAX_DAYS: Final = 397
"""Clients of some makers refuse certificates that last longer."""

_EARLIER = timedelta(minutes=5)  # clocks differ


@app.callback()
def tls() -> None:
    """Make certificates."""


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="A name or an address that clients use, beside localhost. Give it again for more.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=MAX_DAYS, help="How long they are valid.")
    ] = 90,
) -> None:
    """Make ca.crt, server.crt and server.key, for trying.

    Start the server with --tls-cert FOLDER/server.crt --tls-key FOLDER/server.key. Clients trust it
    with --tls-ca FOLDER/ca.crt.
    """
    try:
        write_certificates(folder, (*HOSTS, *(hosts or ())), days)
    except HeadraceError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"made {', '.join(FILES)} in {folder}; they are valid for {days} days")


def write_certificates(folder: Path, hosts: tuple[str, ...], days: int) -> None:
    """Writes the files, the key readable for their owner alone.

    Raises:
        AlreadyExists: one of the files exists.
        InvalidArgument: a host is neither a name nor an address, or a file cannot be written.
    """
    alternatives = [_alternative(host) for host in dict.fromkeys(hosts)]
    for name in FILES:
        if (folder / name).exists():
            raise AlreadyExists(f"{folder / name} exists; remove it, or choose another folder")
    authority, own = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    issuer, subject = _name("headrace trial authority"), _name("headrace server")
    root = (
        _builder(issuer, issuer, authority.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority, hashes.SHA256())
    )
    certificate = (
        _builder(subject, issuer, own.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )
    key = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "server.key", key, 0o600)
        _write(folder / "server.crt", certificate.public_bytes(Encoding.PEM), 0o644)
        _write(folder / "ca.crt", root.public_bytes(Encoding.PEM), 0o644)
    except OSError as error:
        raise InvalidArgument(f"cannot write to {folder}: {error.strerror}") from error


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        if not host or any(character.isspace() or character in "/:," for character in host):
            raise ValueError
        return x509.DNSName(host)
    except ValueError:
        raise InvalidArgument(f"{host[:200]!r} is neither a host's name nor an address") from None


def _write(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
