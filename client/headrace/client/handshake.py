"""A TLS handshake that finds out why gRPC gets no connection. gRPC's own texts often do not say."""

from __future__ import annotations

import socket
import ssl
from typing import Final

_SECONDS: Final = 2.0  # for each of: connect, handshake, the server's first message
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"

# OpenSSL's codes for a certificate that does not verify.
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}

_SPEAKS_TLS = "the server speaks TLS, and this client plain text; pass tls_ca=FILE (--tls-ca)"
_NO_TLS = (
    "the server speaks no TLS on this port; start it with --tls-cert and --tls-key, or connect "
    "without tls_ca"
)
_NO_GRPC = "the server speaks TLS, but not gRPC: gRPC's port is another one, 9000 by default"
_HTTP: Final = "this is a port for HTTP: gRPC's is another one, 9000 by default"
_NEEDS_CERTIFICATE = (
    "the server asks for a client certificate; pass tls_cert=FILE and tls_key=FILE (--tls-cert, "
    "--tls-key)"
)
_REFUSES_CERTIFICATE = (
    "the server refuses the client certificate: it has expired, or its authority is not in the "
    "server's --tls-client-ca"
)


def explain(
    place: str, context: ssl.SSLContext | None, *, secure: bool, certified: bool, name: str = ""
) -> str | None:
    """Why no connection comes about. None if TLS is not the reason, or it cannot be found out.

    Args:
        place: ``host:port``.
        context: checks the server as the client does; None if it does not, or not by files.
        secure: whether the client speaks TLS.
        certified: whether the client has a certificate.
        name: what the server's certificate has to be for, if that is not the host of `place`.
    """
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    name = name or host
    context = context or _unchecked()
    of_client = _REFUSES_CERTIFICATE if certified else _NEEDS_CERTIFICATE
    try:
        with socket.create_connection((host, int(port)), _SECONDS) as plain:
            if secure:
                return _explain(plain, name, context, of_client)
            if (reason := _asked(plain, context)) is not None:
                return reason
        with socket.create_connection((host, int(port)), _SECONDS) as plain:
            plain.sendall(_PREFACE)
            return _HTTP if plain.recv(5) == b"HTTP/" else None
    except (OSError, ValueError):
        return None  # nobody is there, and gRPC says so


def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _asked(plain: socket.socket, context: ssl.SSLContext) -> str | None:
    """Whether a server that refuses plain text speaks TLS."""
    try:
        context.wrap_socket(plain).close()
    except ssl.SSLEOFError:
        return None
    except ssl.SSLError as error:
        return _SPEAKS_TLS if "ALERT" in (error.reason or "") else None
    return _SPEAKS_TLS


def _explain(
    plain: socket.socket, name: str, context: ssl.SSLContext, of_client: str
) -> str | None:
    try:
        with context.wrap_socket(plain, server_hostname=name) as wrapped:
            if wrapped.selected_alpn_protocol() != "h2":
                return _NO_GRPC
            # With TLS 1.3 the server looks at the client's certificate only now. gRPC sends no
            # alert if it refuses the certificate. It ends the connection.
            try:
                wrapped.sendall(_PREFACE)
                greeted = wrapped.recv(1)
            except TimeoutError:
                return None
            except OSError:  # an alert, or a reset
                greeted = b""
            return None if greeted else of_client
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error, name)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason:
            return _NO_TLS
        if "ALERT_PROTOCOL_VERSION" in reason:
            return "client and server have no version of TLS in common"
        if "NO_APPLICATION_PROTOCOL" in reason:
            return _NO_GRPC
        # TLS 1.2 ends here if the server refuses the client's certificate.
        return of_client if "ALERT" in reason or isinstance(error, ssl.SSLEOFError) else None


def _of_certificate(error: ssl.SSLCertVerificationError, name: str) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "the server's certificate has expired; it must be renewed"
    if code == _NOT_YET_VALID:
        return "the server's certificate is not valid yet; compare the clocks of both machines"
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            f"the server's certificate is not for {name!r}; connect to a name that it has, or "
            "have one made that has this name"
        )
    if code in _UNKNOWN_AUTHORITY:
        return (
            "the server's certificate is from an authority that the client does not know; pass the "
            "authority's certificate as tls_ca=FILE (--tls-ca)"
        )
    return f"the server's certificate is refused: {error.verify_message}"
