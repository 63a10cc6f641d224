"""Looking names up, trying addresses, passing proxies."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from headrace.client.channel.connecting import proxies, reasons
from headrace.client.channel.connecting.names import Location, Name
from headrace.client.channel.connecting.proxies import Proxy, proxy_for
from headrace.client.channel.connecting.reasons import Attempt, Unreachable
from headrace.client.channel.connecting.tls import Tls, greeting, is_tls
from headrace.client.channel.connecting.waits import Done, Ready, Steps
from headrace.client.errors import invalid
from headrace.client.forks import process

NEXT_SECONDS: Final = 0.25
"""How long one address is tried alone before the next one is tried beside it (RFC 8305, 5)."""
_ASK_SECONDS: Final = 2.0
_FULL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An address to connect to.

    Attributes:
        place: the server. It is behind `proxy`, if that is not None.
        shown: the address, for errors.
    """

    family: int
    address: Any
    shown: str
    place: Location
    proxy: Proxy | None


@dataclass(frozen=True, slots=True)
class DialResult:
    """A connection that came about.

    Attributes:
        socket: connected, and does not block. It is the caller's.
        address: the address that it is connected to, for errors.
        began: when the attempt to connect began, in seconds of the monotonic clock.
        tls: how the client knows the server; None for plain text.
    """

    socket: socket.socket
    address: str
    began: float
    name: Name
    tls: Tls | None

    def failed(self, cause: str) -> Unreachable:
        """The error of a connection that was of no use."""
        return Unreachable(self.name, [Attempt(self.address, time.monotonic() - self.began, cause)])

    def check_protocol(self, connection: ssl.SSLObject) -> None:
        """Checks that the server agreed to HTTP/2 in the handshake.

        Raises:
            Unreachable: it did not.
        """
        if connection.selected_alpn_protocol() != "h2":
            raise self.failed(reasons.NO_GRPC)


class Dialler:
    """Makes connections to the server of a name. A channel makes one at a time. Not thread-safe.

    Args:
        tls: how the client knows the server; None for plain text.
        environ: names the proxy.

    Raises:
        InvalidArgument: only gRPC can look this name up.
    """

    def __init__(
        self, name: Name, tls: Tls | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        if not name.places or name.resolver:
            kind = "names a DNS server" if name.resolver else "is of a scheme that only gRPC knows"
            raise invalid("target", f"{name.text!r} {kind}; pass a channel of gRPC, as channel=")
        self.name = name
        self._tls = tls
        self._environ = environ
        self._lookups: dict[Location, Future[list[Any]]] = {}
        self._process = process()

    def dial(self, seconds: float) -> Steps[DialResult]:
        """Connects to the first address that answers.

        Raises:
            Unreachable: none did in this time.
        """
        began = time.monotonic()
        until = began + seconds
        failed: list[Attempt] = []
        waiting = deque((yield from self._candidates(until, failed)))
        while waiting:
            connected = yield from _race(waiting, until, failed)
            if connected is None:
                break
            candidate, opened = connected
            try:
                cause = yield from _passed(opened, candidate, until)
            except BaseException:
                opened.close()
                raise
            if not cause:
                if candidate.family != socket.AF_UNIX:
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return DialResult(opened, candidate.shown, began, self.name, self._tls)
            opened.close()
            failed.append(Attempt(candidate.shown, time.monotonic() - began, cause))
        raise Unreachable(self.name, failed)

    def explain(
        self, link: DialResult, error: BaseException | None = None, received: bytes = b""
    ) -> Steps[Unreachable]:
        """The error of a connection that failed before the server's first SETTINGS.

        If a server ends a connection in plain text without a word, it is asked whether it speaks
        TLS. That takes at most some seconds.

        Args:
            error: what the socket, TLS or `DialResult.check_protocol` raised. None if the server
                ended the connection.
            received: the server's first bytes, deciphered.
        """
        if isinstance(error, Unreachable):
            return error
        seconds = time.monotonic() - link.began
        cause = reasons.of_failure(link.tls, error, received)
        if cause == reasons.ENDED and (yield from self._speaks_tls()):
            cause = reasons.SPEAKS_TLS
        return Unreachable(self.name, [Attempt(link.address, seconds, cause)])

    def _speaks_tls(self) -> Steps[bool]:
        until = time.monotonic() + _ASK_SECONDS
        try:
            link = yield from self.dial(_ASK_SECONDS)
        except Unreachable:
            return False
        with link.socket as opened:
            opened.send(greeting())
            try:
                return is_tls((yield from _read(opened, 2, until)))
            except OSError:
                return False

    # -- addresses --

    def _candidates(self, until: float, failed: list[Attempt]) -> Steps[list[_Candidate]]:
        """The addresses to try, in order: those of the two families in turn (RFC 8305, 4)."""
        routes = [(place, proxy_for(place, self._environ)) for place in self.name.places]
        asked = [proxy.place if proxy else place for place, proxy in routes]
        began = time.monotonic()
        lookups = [self._look_up(each) for each in asked]
        if not all(lookup.done() for lookup in lookups):
            yield Done(until, lookups)
        found: list[_Candidate] = []
        for (place, proxy), where, lookup in zip(routes, asked, lookups, strict=True):
            try:
                infos = lookup.result(0)
            except OSError as error:
                cause = reasons.of_lookup(where, proxy, error)
                failed.append(Attempt("", time.monotonic() - began, cause))
                continue
            for family, address in infos:
                shown = str(_place_of(family, address))
                if proxy is not None:
                    shown = f"{place} through the proxy {shown}"
                found.append(_Candidate(family, address, shown, place, proxy))
        return _interleaved(found)

    def _look_up(self, place: Location) -> Future[list[Any]]:
        """The addresses of a place: (family, address) of each.

        A question to name servers cannot be given up. So a thread waits for the answer, and whoever
        asks again meanwhile waits for the same.
        """
        if self._process is not process():  # a thread of the parent has no answer for its child
            self._lookups, self._process = {}, process()
        if (lookup := self._lookups.get(place)) is not None and not lookup.done():
            return lookup
        self._lookups[place] = lookup = Future()
        if place.path or _is_address(place.host):
            _answer(lookup, place)
        else:
            name = "headrace-lookup"
            threading.Thread(target=_answer, args=(lookup, place), name=name, daemon=True).start()
        return lookup


def _answer(lookup: Future[list[Any]], place: Location) -> None:
    try:
        found: list[Any] = [(socket.AF_UNIX, place.path)]
        if not place.path:
            infos = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            found = [(info[0], info[4]) for info in infos]
    except (OSError, UnicodeError) as error:
        known = isinstance(error, OSError)
        lookup.set_exception(error if known else OSError(socket.EAI_NONAME, "not a host's name"))
    else:
        lookup.set_result(found)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _place_of(family: int, address: Any) -> Location:
    return Location(path=address) if family == socket.AF_UNIX else Location(address[0], address[1])


def _interleaved(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """The families in turn, beginning with the first one's."""
    first = [candidate for candidate in candidates if candidate.family == candidates[0].family]
    others = [candidate for candidate in candidates if candidate.family != candidates[0].family]
    pairs: Iterable[Any] = zip_longest(first, others)
    return [each for pair in pairs for each in pair if each is not None]


# -- connections --


def _race(
    waiting: deque[_Candidate], until: float, failed: list[Attempt]
) -> Steps[tuple[_Candidate, socket.socket] | None]:
    """Tries addresses, each next one when the one before it has failed or is slow. Those that are
    left in `waiting` have not been tried to their end.

    Returns:
        The first that is connected; None if all have failed.
    """
    trying: dict[socket.socket, tuple[_Candidate, float]] = {}
    next_at = 0.0

    def lost(candidate: _Candidate, since: float, cause: str) -> None:
        failed.append(Attempt(candidate.shown, time.monotonic() - since, cause))

    try:
        while waiting or trying:
            now = time.monotonic()
            if now >= until:
                for candidate, since in trying.values():
                    lost(candidate, since, reasons.NO_ANSWER)
                return None
            if waiting and (not trying or now >= next_at):
                candidate = waiting.popleft()
                try:
                    trying[_begun(candidate)] = candidate, now
                    next_at = now + NEXT_SECONDS
                except BlockingIOError:  # a Unix socket where too many wait
                    waiting.append(candidate)
                    yield Ready(min(until, now + _FULL_SECONDS))
                except OSError as error:
                    lost(candidate, now, reasons.of_system(error))
                continue
            wake = min(until, next_at) if waiting else until
            for opened in (yield Ready(wake, writing=tuple(trying))):
                candidate, since = trying.pop(opened)
                code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not code:
                    return candidate, opened
                opened.close()
                lost(candidate, since, reasons.of_system(OSError(code, os.strerror(code))))
                next_at = 0.0
        return None
    finally:
        waiting.extendleft(candidate for candidate, _ in trying.values())
        for opened in trying:
            opened.close()


def _begun(candidate: _Candidate) -> socket.socket:
    """A socket that is being connected.

    Raises:
        BlockingIOError: not now.
        OSError: it cannot be connected.
    """
    opened = socket.socket(candidate.family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        opened.connect(candidate.address)
    except OSError as error:
        if error.errno != errno.EINPROGRESS:
            opened.close()
            raise
    return opened


def _passed(opened: socket.socket, candidate: _Candidate, until: float) -> Steps[str]:
    """Asks a proxy for a connection to the server. Returns why there is none; empty if there is."""
    proxy = candidate.proxy
    if proxy is None:
        return ""
    try:
        opened.send(proxy.request(candidate.place))
        head = b""
        # What comes after the head is the server's, so no byte too many is read.
        while not head.endswith(b"\r\n\r\n"):
            byte = yield from _read(opened, 1, until)
            head += byte
            if not byte or len(head) > proxies.MOST_HEAD_BYTES:
                return reasons.of_proxy(proxy, candidate.place, 0)
    except TimeoutError:
        return f"the proxy {proxy.place} ({proxy.variable}) did not answer in time"
    except OSError:
        return reasons.of_proxy(proxy, candidate.place, 0)
    status = proxies.status_of(head)
    return "" if 200 <= status < 300 else reasons.of_proxy(proxy, candidate.place, status)


def _read(opened: socket.socket, size: int, until: float) -> Steps[bytes]:
    """The next bytes; none at the end of the connection.

    Raises:
        TimeoutError: none came in time.
        OSError: the connection broke.
    """
    while True:
        try:
            return opened.recv(size)
        except BlockingIOError:
            if not (yield Ready(until, reading=(opened,))):
                raise TimeoutError from None
