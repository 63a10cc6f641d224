"""How a client knows its server, and how the server knows the client: TLS and a token."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import grpc

from headrace.client.channel.connecting.names import parse
from headrace.client.channel.connecting.tls import Tls
from headrace.client.errors import invalid
from headrace.client.shared_memory.handover import Handover, side_path
from headrace.client.shared_memory.pool import RegionPool
from headrace.client.transport import Calls

C = TypeVar("C", bound=Calls[Any])

File: TypeAlias = str | os.PathLike[str]
Metadata: TypeAlias = tuple[tuple[str, str], ...]

_MAX_TOKEN_BYTES: Final = 1 << 16
_TOKEN = re.compile(r"[!-~]{1,8000}")  # what fits into gRPC's metadata


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """TLS and the token of one client. It never shows the token.

    Attributes:
        credentials: gRPC's own credentials, if the user gave them.
        context: TLS by files. None for plain text, or with `credentials`.
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
        repeats: whether calls that may be repeated are.
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
        plain = self.security.credentials is None and self.security.context is None
        if token is not None and plain and not allow_insecure and not self.name.is_local:
            raise invalid(
                "token",
                f"the token would travel to {self.address} in plain text; pass tls_ca=FILE, or "
                "allow_insecure=True if nobody else can read that network",
            )

    def __str__(self) -> str:
        return self.address

    def at(self, place: str, authority: str = "", *, repeats: bool = True) -> Endpoint:
        """The endpoint of one server of several, with the same TLS and token."""
        one = Endpoint(place, allow_insecure=True)
        one.security, one.authority, one.repeats = self.security, authority, repeats
        return one

    @property
    def tls(self) -> Tls | None:
        """How a channel of ours knows the server. None for plain text."""
        context = self.security.context
        if context is None:
            return None
        name = self.authority.rpartition(":")[0].strip("[]") or self.name.host
        return Tls(context, name, self.security.certified)

    def calls(
        self,
        kind: type[C],
        own: Callable[..., Any],
        adapted: Callable[..., Any],
        library: Any,
        max_message_bytes: int,
        given: Any = None,
    ) -> C:
        """The calls of a client.

        Args:
            kind: their class.
            own: the class of its channel.
            adapted: the class that makes such a channel of one of gRPC's.
            library: `grpc` or `grpc.aio`, for gRPC's own credentials, which only gRPC can read.
            given: gRPC's channel, if the user made one.
        """
        security = self.security
        if given is not None:
            channel = adapted(given)
        elif security.credentials is not None:
            options: list[tuple[str, Any]] = [
                ("grpc.max_send_message_length", max_message_bytes),
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.enable_http_proxy", int(not self.name.is_local)),
            ]
            if self.authority:
                options.append(("grpc.default_authority", self.authority))
            made = library.secure_channel(self.address, security.credentials, options)
            channel = adapted(made, owned=True)
        else:
            channel = own(
                self.name,
                tls=self.tls,
                authority=self.authority,
                max_message_bytes=max_message_bytes,
            )
        metadata = None if security.token is None else security.metadata
        return kind(channel, self.address, metadata, repeats=self.repeats)

    def pool(self, wanted: bool | None) -> RegionPool | None:
        """The shared memory of a client; None if tensors travel in messages.

        Args:
            wanted: None for yes if the server is behind a Unix socket, and otherwise no.
        """
        path = side_path(self.address)
        if wanted is False or (path is None and not wanted):
            return None
        return RegionPool(handover=None if path is None else Handover(path, self.security.metadata))


def endpoint_of(target: Any, *security: Any, insecure: bool) -> Endpoint:
    """The endpoint for the arguments of a client, which may be an endpoint already."""
    if isinstance(target, Endpoint):
        return target
    return Endpoint(target, *security, allow_insecure=insecure)


def read_token(file: File) -> str:
    """The token in a file.

    Raises:
        InvalidArgument: the file cannot be read.
    """
    try:
        with Path(file).open("rb") as opened:
            return opened.read(_MAX_TOKEN_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        raise invalid("token", f"cannot read {os.fspath(file)}: {error.strerror}") from error


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
    for name, file in zip(("tls_ca", "tls_cert", "tls_key"), files, strict=True):
        _check_readable(name, file)
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
    return Security(None, context, bool(tls_cert), token)


def _check_readable(name: str, file: File | None) -> None:
    if not file:
        return
    try:
        Path(file).read_bytes()
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
