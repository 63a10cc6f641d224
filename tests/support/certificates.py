"""Authorities, and the certificates that they sign, for tests of TLS."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)
LOCAL = ("localhost", "127.0.0.1", "::1")

_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Writes ``NAME.crt`` and ``NAME.key``, and returns their paths."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.write_bytes(self.key)
        return certificate, key


class Authority:
    """A certificate authority.

    Args:
        name: its common name.
    """

    def __init__(self, name: str = "Test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.now(UTC)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._own = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """The authority's own certificate, as PEM."""
        return self._own.public_bytes(Encoding.PEM)

    def write(self, folder: Path, name: str = "ca.crt") -> Path:
        path = folder / name
        path.write_bytes(self.certificate)
        return path

    def server(
        self,
        hosts: tuple[str, ...] = LOCAL,
        *,
        since: timedelta = -DAY,
        until: timedelta = DAY,
        key: _Key | None = None,
        also_client: bool = False,
    ) -> Pair:
        """A server's certificate. `since` and `until` are relative to now."""
        names: list[x509.GeneralName] = [_alternative(host) for host in hosts]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH]
        if also_client:
            usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        return self._sign("headrace server", names, usages, since, until, key)

    def client(
        self,
        name: str,
        *,
        since: timedelta = -DAY,
        until: timedelta = DAY,
        names: tuple[str, ...] = (),
    ) -> Pair:
        """A client's certificate. `name` is its subject's common name, `names` are DNS names."""
        alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in names]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._sign(name, alternatives, usages, since, until, None)

    def _sign(
        self,
        name: str,
        names: list[x509.GeneralName],
        usages: list[x509.ObjectIdentifier],
        since: timedelta,
        until: timedelta,
        key: _Key | None,
    ) -> Pair:
        key = key or ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + since)
            .not_valid_after(now + until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Pair(signed.public_bytes(Encoding.PEM), private)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
