"""How a client knows its server, and how the server knows the client: TLS and a token."""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc

from headrace.client.channel.connecting.names import parse
from headrace.client.channel.connecting.tls import Tls
from headrace.client.errors import invalid
from headrace.client.handshake import explain
from headrace.client.shared_memory.handover import Handover, side_path
from headrace.client.shared_memory.pool import Pool
from headrace.client.transport import Channels, channel_options

File: TypeAlias = str | os.PathLike[str]
Metadata: TypeAlias = tuple[tuple[str, str], ...]

_TOKEN = re.compile(r"[!-~]{1,8000}")  # what fits into gRPC's metadata
_SHARED_BYTES: Final = 4 * 1024 * 1024
_KNOWN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """TLS and the token of one client. It never shows the token.

    Attributes:
        credentials: gRPC's credentials; None for plain text.
        context: checks the server as gRPC does, to explain a failure; None if that is unknown.
        certified: whether the client has a certificate of its own.
        token: the text that is sent with each call, or a function that gives it.
    """

    credentials: grpc.ChannelCredentials | None = None
    context: ssl.SSLContext | None = None
    certified: bool = False
    token: str | Callable[[], str] | None = None

    def metadata(self) -> Metadata:
        """The metadata of a call, with the token.

        Raises:
            InvalidArgument: the token is not a word of printable ASCII.
        """
        token = self.token() if callable(self.token) else self.token
        return () if token is None else (("authorization", f"Bearer {_checked(token)}"),)


class Endpoint:
    """The server that a client talks to. str() of it is the address. Thread-safe.

    Args:
        target, credentials, tls_ca, tls_cert, tls_key, token, allow_insecure: as for
            `headrace.client.Client`.

    Attributes:
        name: the address, taken apart.
        authority: the name that the server's certificate is for; empty if it is the address.
        repeats: whether gRPC repeats failed calls, and reasons of failures are looked for.
    """

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None = None,
        tls_ca: File | None = None,
        tls_cert: File | None = None,
        tls_key: File | None = None,
        token: str | Callable[[], str] | None = None,
        *,
        allow_insecure: bool = False,
    ) -> None:
        self.name = parse(target)
        self.address = self.name.text
        self.authority = ""
        self.repeats = True
        self.security = _security(credentials, tls_ca, tls_cert, tls_key, token)
        plain = self.security.credentials is None
        if token is not None and plain and not allow_insecure and not self.name.is_local:
            raise invalid(
                "token",
                f"the token would travel to {self.address} in plain text; pass tls_ca=FILE, or "
                "allow_insecure=True if nobody else can read that network",
            )
        self._lock = threading.Lock()  # one diagnosis at a time; guards what it found
        self._found: str | None = None
        self._found_at = -_KNOWN_SECONDS

    def __str__(self) -> str:
        return self.address

    def at(self, place: str, authority: str = "", *, repeats: bool = True) -> Endpoint:
        """The endpoint of one server of several, with the same TLS and token."""
        one = Endpoint(place, allow_insecure=True)
        one.security, one.authority, one.repeats = self.security, authority, repeats
        return one

    @property
    def tls(self) -> Tls | None:
        """How a channel of ours knows the server. None for plain text, and if the user gave gRPC's
        own credentials, which only gRPC can read."""
        context = self.security.context
        if context is None:
            return None
        name = self.authority.rpartition(":")[0].strip("[]") or self.name.host
        return Tls(context, name, self.security.certified)

    def channels(
        self,
        library: Any,
        max_message_bytes: int,
        streams: Callable[..., Any] | None = None,
        kind: type[Channels] = Channels,
    ) -> Channels:
        """The connections of a client.

        Args:
            library: `grpc` or `grpc.aio`.
            streams: makes the streams that requests share; the same as in `Channels`. Clients that
                receive only small messages have none, because results share messages.
        """
        security = self.security

        def connect(options: list[tuple[str, Any]]) -> Any:
            if security.credentials is None:
                return library.insecure_channel(self.address, options)
            return library.secure_channel(self.address, security.credentials, options)

        def options(once: bool) -> list[tuple[str, Any]]:
            once = once or not self.repeats
            found = channel_options(self.address, max_message_bytes, once=once)
            name = self.authority
            return [*found, ("grpc.default_authority", name)] if name else found

        metadata = None if security.token is None else security.metadata
        shares = streams if max_message_bytes >= _SHARED_BYTES else None
        return kind(connect, options, metadata, self.address, shares)

    def pool(self, wanted: bool | None) -> Pool | None:
        """The shared memory of a client; None if tensors travel in messages.

        Args:
            wanted: None for yes if the server is behind a Unix socket, and otherwise no.
        """
        path = side_path(self.address)
        if wanted is False or (path is None and not wanted):
            return None
        return Pool(handover=None if path is None else Handover(path, self.security.metadata))

    def explain(self, message: str) -> str | None:
        """Says why no connection came about, if TLS is the reason.

        It tries a handshake of its own, which takes at most some seconds. Calls that fail at the
        same time share one.

        Args:
            message: gRPC's text.
        """
        if not self.repeats or not _MAY_BE_TLS.search(message):
            return None
        with self._lock:
            if time.monotonic() - self._found_at > _KNOWN_SECONDS:
                named, mine = self.name.places, self.security
                self._found = (
                    explain(
                        str(named[0]),
                        mine.context,
                        secure=mine.credentials is not None,
                        certified=mine.certified,
                        name=self.authority.rpartition(":")[0].strip("[]"),
                    )
                    if named and not named[0].path
                    else None
                )
                self._found_at = time.monotonic()
            return self._found


def endpoint_of(target: Any, *security: Any, insecure: bool) -> Endpoint:
    """The endpoint for the arguments of a client, which may be an endpoint already."""
    if isinstance(target, Endpoint):
        return target
    return Endpoint(target, *security, allow_insecure=insecure)


# gRPC's texts if a connection was made and then failed. For a host with several addresses, gRPC
# only tells how the last one failed.
_MAY_BE_TLS = re.compile(
    r"all addresses|handshake|closed|reset|broken pipe|HTTP/2|verif|ALPN|certificate|EOF",
    re.IGNORECASE,
)


def _checked(token: object) -> str:
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return token
    raise invalid("token", "token is not a word of 1 to 8000 printable ASCII characters")


def _security(
    credentials: grpc.ChannelCredentials | None,
    tls_ca: File | None,
    tls_cert: File | None,
    tls_key: File | None,
    token: str | Callable[[], str] | None,
) -> Security:
    if token is not None and not callable(token):
        _checked(token)
    files = (tls_ca, tls_cert, tls_key)
    if not any(files):
        return Security(credentials, token=token)
    if credentials is not None:
        raise invalid("credentials", "pass credentials, or tls_ca, tls_cert and tls_key; not both")
    if bool(tls_cert) != bool(tls_key):
        missing = "tls_key" if tls_cert else "tls_cert"
        raise invalid(missing, "tls_cert and tls_key belong together; pass both")
    ca, certificate, key = (
        _read(name, file)
        for name, file in zip(("tls_ca", "tls_cert", "tls_key"), files, strict=True)
    )
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    if tls_ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        with _said("tls_ca", f"{tls_ca} holds no certificate in PEM form, or a broken one"):
            context.load_verify_locations(tls_ca)
    if tls_cert and tls_key:
        text = f"{tls_cert} and {tls_key} are not a certificate and its key, in PEM form"
        with _said("tls_cert", f"{text} without a password"):
            context.load_cert_chain(tls_cert, tls_key, password=_no_password)
    made = grpc.ssl_channel_credentials(ca, key, certificate)
    return Security(made, context, bool(tls_cert), token)


def _read(name: str, file: File | None) -> bytes | None:
    if not file:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise invalid(name, f"cannot read {os.fspath(file)}: {error.strerror}") from error


def _no_password() -> Any:
    raise ValueError("the key has a password")


@contextmanager
def _said(field: str, message: str) -> Iterator[None]:
    """Turns what OpenSSL raises into one text."""
    try:
        yield
    except (ssl.SSLError, ValueError) as error:
        raise invalid(field, message) from error
