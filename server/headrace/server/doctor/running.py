"""Checks the ports, and the server that runs there."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509

from headrace.runtime.errors import AlreadyExists, HeadraceError
from headrace.server.addresses import check_address, check_exposure, shown_address
from headrace.server.doctor.certificates import check_chain
from headrace.server.doctor.finding import Finding, ok, problem, warning
from headrace.server.settings.option import flag
from headrace.server.settings.settings import Settings
from headrace.server.transport.unix_socket import check_free, owner_of

_SECONDS: Final = 5.0
_SKEW_SECONDS: Final = 5.0
_MAX_BODY: Final = 1 << 16
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with


class Readiness(NamedTuple):
    """What the HTTP port said to /readyz.

    Attributes:
        skew: how many seconds its clock is ahead of ours; None if it does not tell.
    """

    status: int
    body: str
    skew: float | None


def check_ports(settings: Settings) -> Iterator[Finding]:
    """Whether the server could listen, or the server of these settings does so already."""
    try:
        check_exposure(settings)
    except HeadraceError as error:
        message, _, remedy = error.message.partition("\n")
        yield problem("ports", message, remedy)
    if settings.unix_socket is not None:
        yield _unix_socket(settings, settings.unix_socket)
    for setting, host, port in (
        *([] if settings.unix_socket_only else [("port", settings.host, settings.port)]),
        ("http_port", settings.http_host, settings.http_port),
    ):
        try:
            check_address(setting, host, port)
        except HeadraceError as error:
            if _answers(settings):
                yield ok("ports", f"{shown_address(host, port)} has a server of headrace already")
            else:
                remedy = f"stop the program that listens there, or give another {flag(setting)}"
                yield problem("ports", error.message, remedy)
        else:
            yield ok("ports", f"{shown_address(host, port)} is free")


def _unix_socket(settings: Settings, path: Path) -> Finding:
    """Whether the server could make its Unix socket, or has made it already."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        remedy = f"make the folder {path.parent}, and let the server's user write there"
        return problem("ports", f"no socket can be made at {path}", remedy)
    try:
        owner_of(settings.unix_socket_owner)
        check_free(path)
    except AlreadyExists as error:
        if _answers(settings):
            return ok("ports", f"{path} has a server of headrace already")
        return problem("ports", error.message, "stop the program that listens there")
    except HeadraceError as error:
        return problem("ports", error.message, f"give another {flag(error.field or 'unix_socket')}")
    return ok("ports", f"{path} is free")


def check_server(settings: Settings, host: str, ca: Path | None = None) -> Iterator[Finding]:
    """Checks the server that runs at a host, with the ports of the settings.

    Args:
        ca: a PEM file with the authorities of its certificate; default: the system's.
    """
    tls = settings.tls_cert is not None or ca is not None
    if tls:
        grpc = () if settings.unix_socket_only else (settings.port,)
        for port in (*grpc, settings.http_port):
            yield from _tls(host, port, ca)
    try:
        readiness = ask(host, settings.http_port, tls=tls)
    except OSError as error:
        place = shown_address(host, settings.http_port)
        yield problem(
            "server", f"{place} does not answer: {error}", "start the server, or name its host"
        )
        return
    if readiness.status == http.HTTPStatus.OK:
        yield ok("server", f"it is {readiness.body.splitlines()[0] if readiness.body else 'ready'}")
        for line in readiness.body.splitlines()[1:]:
            yield warning("server", line, "look at `headrace networks`")
    else:
        first = readiness.body.splitlines()[0] if readiness.body else str(readiness.status)
        yield problem("server", f"it is not ready: {first}", "wait, or look at its log")
    yield from check_clock(readiness.skew)


def check_clock(skew: float | None) -> Iterator[Finding]:
    """
    Args:
        skew: how many seconds the server's clock is ahead of this machine's.
    """
    if skew is None:
        yield warning("clock", "the server does not tell its time", "compare the clocks by hand")
    elif abs(skew) > _SKEW_SECONDS:
        which = "ahead of" if skew > 0 else "behind"
        yield warning(
            "clock",
            f"the server's clock is {abs(skew):.0f} s {which} this machine's; tokens and "
            "certificates may count as expired, or as not valid yet",
            "let both machines set their clocks over NTP",
        )
    else:
        yield ok("clock", f"the server's clock and this machine's agree within {_SKEW_SECONDS:g} s")


def check_own_clock(
    newest: Path = Path(__file__), clock: Callable[[], float] = time.time
) -> Iterator[Finding]:
    """Whether the clock is behind a file of this program, which was written in the past.

    Args:
        newest: the file.
    """
    behind = newest.stat().st_mtime - clock()
    if behind > _SKEW_SECONDS:
        yield problem(
            "clock",
            f"this machine's clock is at least {behind:.0f} s behind: {newest.name} is newer",
            "set the clock, for example over NTP",
        )


def ask(host: str, port: int, *, tls: bool) -> Readiness:
    """Asks the HTTP port whether the server is ready.

    Raises:
        OSError: there is no HTTP server.
    """
    connection: http.client.HTTPConnection
    if tls:
        connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=_unchecked())
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read(_MAX_BODY).decode("utf-8", "replace")
        date = response.getheader("date")
        middle = time.time()
    except http.client.HTTPException as error:
        raise OSError(f"it speaks no HTTP: {error!r}") from error
    finally:
        connection.close()
    skew = None
    if date is not None:
        try:
            skew = parsedate_to_datetime(date).timestamp() + 0.5 - middle  # whole seconds
        except ValueError:
            skew = None
    return Readiness(response.status, body, skew)


def _answers(settings: Settings) -> bool:
    host = _ANYWHERE.get(settings.http_host, settings.http_host)
    try:
        readiness = ask(host, settings.http_port, tls=settings.tls_cert is not None)
    except OSError:
        return False
    return readiness.status in (http.HTTPStatus.OK, http.HTTPStatus.SERVICE_UNAVAILABLE)


def _tls(host: str, port: int, ca: Path | None) -> Iterator[Finding]:
    """The certificate that a port shows, and whether a client that trusts `ca` takes it."""
    place = shown_address(host, port)
    try:
        data = _certificate(host, port, _unchecked())
    except OSError as error:
        yield problem("tls", f"{place} does not speak TLS: {error}", "start the server with TLS")
        return
    chain = [x509.load_der_x509_certificate(data)]
    yield from check_chain(chain, place, host)
    try:
        context = ssl.create_default_context(cafile=ca)
        context.check_hostname = False  # said above
        context.set_alpn_protocols(["h2", "http/1.1"])
        _certificate(host, port, context)
    except ssl.SSLCertVerificationError as error:
        whom = f"the authorities in {ca}" if ca is not None else "the system's authorities"
        yield problem(
            "tls",
            f"{place}: a client that trusts {whom} refuses its certificate: {error.verify_message}",
            "pass the file of the right authority with --tls-ca, or add missing certificates of "
            "the chain to --tls-cert",
        )
    except ssl.SSLError:
        pass  # it asks for a client's certificate
    except OSError as error:
        where = f"{ca} cannot be used" if ca is not None else place
        yield problem("tls", f"{where}: {error}", "give --tls-ca a PEM file with authorities")


def _certificate(host: str, port: int, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection((host, port), _SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        return secure.getpeercert(binary_form=True) or b""


def _unchecked() -> ssl.SSLContext:
    """Takes any certificate: the doctor looks at it, and sends no secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context
