"""The likely causes of a failure to connect, in words for a user."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.client.channel.connecting.names import Location, Name
from headrace.client.channel.connecting.proxies import Proxy
from headrace.client.channel.connecting.tls import Tls, is_tls


class LastingCause(str):
    """A cause that the next attempt meets, too, until somebody changes something."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One that failed.

    Attributes:
        address: what was tried. Empty if no address is known.
    """

    address: str
    seconds: float
    cause: str


class Unreachable(OSError):
    """No connection came about. str() says which addresses were tried, how long it took, and why.

    Attributes:
        attempts: in their order.
        lasts: whether connecting again is of no use.
    """

    def __init__(self, name: Name, attempts: Sequence[Attempt]) -> None:
        super().__init__(f"cannot reach the server at {name}: {_told(attempts)}")
        self.attempts = tuple(attempts)
        causes = [attempt.cause for attempt in attempts]
        self.lasts = bool(causes) and all(isinstance(cause, LastingCause) for cause in causes)


def _told(attempts: Sequence[Attempt]) -> str:
    """Each cause once, with the addresses that it holds for."""
    told = []
    for cause in dict.fromkeys(attempt.cause for attempt in attempts):
        mine = [attempt for attempt in attempts if attempt.cause == cause]
        tried = ", ".join(dict.fromkeys(each.address for each in mine if each.address))
        seconds = _duration(max(each.seconds for each in mine))
        told.append(f"{cause} (tried {tried}; {seconds})" if tried else f"{cause} ({seconds})")
    return "; ".join(told)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


NO_ANSWER: Final = (
    "nobody answered in time: the machine may be off, the address wrong, or a firewall drops what "
    "comes"
)
SILENT: Final = (
    "the server took the connection and said nothing: it may be frozen or overloaded, or something "
    "else than gRPC listens there"
)
SPEAKS_TLS: Final = LastingCause(
    "the server speaks TLS, and this client plain text; pass tls_ca=FILE (--tls-ca)"
)
ENDED: Final = (
    "the server ended the connection at once: it may be stopping or full, or something else than "
    "gRPC listens there"
)
_NO_TLS: Final = LastingCause(
    "the server speaks no TLS on this port; start it with --tls-cert and --tls-key, or connect "
    "without tls_ca"
)
NO_GRPC: Final = LastingCause(
    "the server speaks TLS, but not gRPC: gRPC's port is another one, 9000 by default"
)
_HTTP: Final = LastingCause(
    "an HTTP/1 server answered: this is a port for HTTP, and gRPC's is another one, 9000 by default"
)
_NEEDS_CERTIFICATE: Final = (
    "the server asks for a client certificate; pass tls_cert=FILE and tls_key=FILE (--tls-cert, "
    "--tls-key)"
)
_REFUSES_CERTIFICATE: Final = (
    "the server refuses the client certificate: it has expired, or its authority is not in the "
    "server's --tls-client-ca"
)
_NOT_HTTP2: Final = LastingCause(
    "what listens there does not speak HTTP/2: gRPC's port is another one"
)

_SYSTEM: Final = {
    errno.ECONNREFUSED: "nobody listens there; start the server, or correct the address",
    errno.ENOENT: "there is no such socket; start the server with --unix-socket, or correct the "
    "path",
    errno.EACCES: "this user may not use that socket; its file's permissions say who may",
    errno.ETIMEDOUT: NO_ANSWER,
    errno.EHOSTUNREACH: "no way leads to that machine; it may be off, or the address wrong",
    errno.ENETUNREACH: "no way leads to that network from this machine",
    errno.EAFNOSUPPORT: "this machine has no network of that kind",
}

# OpenSSL's codes for a certificate that does not verify.
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
_UNKNOWN_AUTHORITY: Final = {2, 18, 19, 20, 21}


def of_system(error: OSError) -> str:
    """Why an address could not be connected to."""
    number = error.errno or 0
    return _SYSTEM.get(number) or error.strerror or os.strerror(number)


def of_lookup(place: Location, proxy: Proxy | None, error: OSError) -> str:
    """Why a place has no address. It is the proxy's, if there is one."""
    host = repr(place.host) + (f", the proxy of {proxy.variable}" if proxy else "")
    if isinstance(error, TimeoutError) or error.errno == socket.EAI_AGAIN:
        return f"no name server tells the address of {host}; try again, or see to DNS"
    return f"DNS knows no host {host}; correct the name"


def of_proxy(proxy: Proxy, place: Location, status: int) -> str:
    """Why a proxy gives no connection to a server.

    Args:
        status: HTTP's; 0 if the proxy did not answer in HTTP.
    """
    who = f"the proxy {proxy.place} ({proxy.variable})"
    if status == 407:
        return LastingCause(
            f"{who} answered HTTP 407: it asks for a user and a password; set "
            f"{proxy.variable}=http://USER:PASSWORD@{proxy.place}"
        )
    if status == 403:
        return LastingCause(
            f"{who} answered HTTP 403: it does not lead to {place}; name the host in no_proxy if "
            "it can be reached without a proxy"
        )
    if status:
        return f"{who} answered HTTP {status}: it has no connection to {place}"
    return f"{who} is no HTTP proxy, or ended the connection; correct {proxy.variable}"


def of_failure(tls: Tls | None, error: BaseException | None, received: bytes) -> str:
    """Why a server does not speak HTTP/2 on a connection that came about.

    Args:
        error: what the socket or TLS raised. None if the server ended the connection.
        received: the server's first bytes, deciphered.
    """
    if received.startswith((b"HTTP/", b"<")):  # the oldest HTTP answers by a page alone
        return _HTTP
    if is_tls(received):
        return SPEAKS_TLS
    if received:
        return _NOT_HTTP2
    if isinstance(error, ssl.SSLError):
        return _of_handshake(tls, error)
    if isinstance(error, TimeoutError):
        return SILENT
    # With TLS 1.3 the server looks at the client's certificate only after the handshake. Servers
    # that send no alert just end the connection.
    return ENDED if tls is None else _of_certificate_of_client(tls)


def _of_certificate_of_client(tls: Tls | None) -> str:
    return _REFUSES_CERTIFICATE if tls and tls.certified else _NEEDS_CERTIFICATE


def _of_handshake(tls: Tls | None, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return LastingCause(_of_certificate(error, tls.name if tls else ""))
    reason = error.reason or ""
    if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason:
        return _NO_TLS
    if "ALERT_PROTOCOL_VERSION" in reason:
        return LastingCause("client and server have no version of TLS in common")
    if "NO_APPLICATION_PROTOCOL" in reason:
        return NO_GRPC
    # TLS 1.2 ends here if the server refuses the client's certificate.
    if "ALERT" in reason and "INTERNAL" not in reason:
        return LastingCause(_of_certificate_of_client(tls))
    if "ALERT" in reason or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _of_certificate_of_client(tls)
    return f"the handshake of TLS failed: {reason or error}"


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
