"""The server's certificate, for gRPC and HTTP: read from files, and read again when they change."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from headrace.runtime.metrics.families import TLS_EXPIRATION, TLS_STALE
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.server.access.watched import WatchedFiles, Watcher
from headrace.server.settings.settings import Settings

if TYPE_CHECKING:  # a server without TLS does without its 8 MB
    from cryptography import x509

_LEAST_RSA_BITS = 2048
# gRPC's choice for TLS 1.2, so that both ports accept the same ones. TLS 1.3 has its own.
_CIPHERS = "ECDHE+AESGCM"
_SETTLE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key, in the forms that the front ends need.

    Attributes:
        configuration: for gRPC's own server.
        context, grpc_context: for HTTP and for gRPC.
        expires: when the first certificate of its chain expires, in seconds since 1970.
    """

    configuration: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext
    grpc_context: ssl.SSLContext
    expires: float


class ServerTls:
    """TLS for both listeners. Any thread may use it.

    A new state of the files is used for new connections. Open connections go on. Files that are
    broken, expired or do not belong together are refused, and the last good state stays.

    Args:
        certificate: a PEM file with the server's certificate, and then those that signed it.
        key: a PEM file with the certificate's key.
        client_ca: a PEM file with the authorities of clients. Each client then needs a certificate
            from one of them.
        watcher: looks at the files.

    Raises:
        InvalidArgument: the files cannot be used. The error names the file.
    """

    def __init__(
        self, certificate: Path, key: Path, client_ca: Path | None, watcher: Watcher
    ) -> None:
        paths = [certificate, key, *([client_ca] if client_ca is not None else [])]

        def parse(*contents: bytes) -> Certificate:
            return read_certificate(contents, paths)

        self.needs_client_certificate = client_ca is not None
        self._files = WatchedFiles(paths, parse, field="tls_cert")
        watcher.add(self._files)

    def context(self) -> ssl.SSLContext:
        """The context for the next HTTP connection."""
        return self._files.value.context

    def grpc_context(self) -> ssl.SSLContext:
        """The context for the next gRPC connection."""
        return self._files.value.grpc_context

    def snapshot(self) -> Iterator[SeriesSnapshot]:
        yield SeriesSnapshot(TLS_EXPIRATION, (), self._files.value.expires)
        yield SeriesSnapshot(TLS_STALE, (), float(self._files.is_stale))

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials for gRPC's port. gRPC asks at each connection for a new state."""
        served = self._files.value

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            latest = self._files.value
            if latest is served:
                return None
            # gRPC holds a lock around this call, and frees the old configuration afterwards. A
            # connection that has left the lock a moment ago may still be taking the old one, and
            # the process would end. So that connection gets time. (gRPC calls this on threads of
            # its own, and the pause comes once for each new state.)
            time.sleep(_SETTLE_SECONDS)
            served = latest
            return latest.configuration

        return grpc.dynamic_ssl_server_credentials(
            served.configuration,
            changed,
            require_client_authentication=self.needs_client_certificate,
        )


def server_tls(settings: Settings, watcher: Watcher) -> ServerTls | None:
    """TLS as the settings say. None for plain text."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca, watcher)


def read_certificate(contents: Sequence[bytes], names: Sequence[object]) -> Certificate:
    """Checks and prepares a certificate.

    Args:
        contents: the bytes of the certificate's chain and of its key, and of the clients'
            authorities if each client needs a certificate.
        names: the names of the files, for errors.

    Raises:
        ValueError: the contents cannot be used. The text says why, and names the file.
    """
    chain, key, *client_ca = contents
    certificates = _certificates(chain, names[0])
    own = certificates[0]
    if own.public_key() != _public_key_of(key, names[1]):
        raise ValueError(f"{names[1]} is not the key of the certificate in {names[0]}")
    now = datetime.now(UTC)
    expires = min(certificate.not_valid_after_utc for certificate in certificates)
    if expires <= now:
        raise ValueError(f"{names[0]} expired on {expires:%Y-%m-%d %H:%M} UTC; renew it")
    if own.not_valid_before_utc > now:
        since = own.not_valid_before_utc
        raise ValueError(f"{names[0]} is valid only from {since:%Y-%m-%d %H:%M} UTC on")
    for authorities in client_ca:
        _certificates(authorities, names[2])
    try:
        http = _context("http/1.1", chain, key, *client_ca)
        http2 = _context("h2", chain, key, *client_ca)
    except ssl.SSLError as error:
        raise ValueError(f"{names[0]} cannot be used for TLS: {error.reason}") from error
    return Certificate(
        grpc.ssl_server_certificate_configuration([(key, chain)], *client_ca),
        http,
        http2,
        expires.timestamp(),
    )


def _certificates(data: bytes, name: object) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise ValueError(f"{name} holds no certificate in PEM form, or a broken one") from error


def _public_key_of(key: bytes, name: object) -> object:
    """
    Raises:
        ValueError: it is not a private key without a password, or of a kind that TLS with gRPC
            cannot use.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key, None)
    except TypeError as error:
        raise ValueError(f"{name} has a password; store the key without one") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{name} holds no private key in PEM form, or a broken one") from error
    strong = isinstance(private, rsa.RSAPrivateKey) and private.key_size >= _LEAST_RSA_BITS
    if not strong and not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError(
            f"{name} is neither an EC key nor an RSA key of at least {_LEAST_RSA_BITS} bits"
        )
    return private.public_key()


def _context(
    protocol: str, chain: bytes, key: bytes, client_ca: bytes | None = None
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols([protocol])
    with _as_file(chain + b"\n" + key) as path:
        context.load_cert_chain(path)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        with _as_file(client_ca) as path:
            context.load_verify_locations(path)
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path at which OpenSSL finds the data. Nothing is written to a disk."""
    descriptor = os.memfd_create("tls")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"
