"""Servers of a few lines, for clients that connect to what is no server of ours."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.certificates import Pair

SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
Talk = Callable[[socket.socket], object]


@contextmanager
def listening(talk: Talk, address: object = ("127.0.0.1", 0)) -> Iterator[int]:
    """A server that talks to each client on a thread. Gives its port; 0 for a Unix socket."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen()

        threads: list[threading.Thread] = []

        def serve(accepted: socket.socket) -> None:
            with accepted, suppress(OSError):
                accepted.settimeout(5)
                talk(accepted)

        def accept() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=serve, args=(accepted,)))
                threads[-1].start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield 0 if family == socket.AF_UNIX else listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in threads:
                each.join()


@contextmanager
def unanswered() -> Iterator[int]:
    """A port whose queue of connections is full, so that the system drops what comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        place = listener.getsockname()
        waiting = []
        try:
            while True:
                one = socket.socket()
                waiting.append(one)
                one.settimeout(0.2)
                try:
                    one.connect(place)
                except TimeoutError:
                    break
            yield place[1]
        finally:
            for one in waiting:
                one.close()


def saying(answer: bytes) -> Talk:
    """Reads something, answers, and waits for the end."""

    def talk(accepted: socket.socket) -> None:
        accepted.recv(1000)
        accepted.sendall(answer)
        while accepted.recv(1000):
            pass

    return talk


def greeting(accepted: socket.socket) -> None:
    """Speaks HTTP/2 as far as its first frame."""
    accepted.sendall(SETTINGS)
    while accepted.recv(1000):
        pass


def proxying(answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n", asked: list[bytes] | None = None) -> Talk:
    """A proxy that answers so, and is the server itself behind its answer."""

    def talk(accepted: socket.socket) -> None:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += accepted.recv(1000)
        if asked is not None:
            asked.append(request)
        accepted.sendall(answer + SETTINGS)
        while accepted.recv(1000):
            pass

    return talk


def with_tls(
    pair: Pair, talk: Talk, *, protocols: tuple[str, ...] = ("h2",), authority: bytes | None = None
) -> Talk:
    """Talks after a handshake. With an authority, clients need a certificate of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(list(protocols))
    with TemporaryDirectory() as folder:
        context.load_cert_chain(*pair.write(Path(folder), "server"))
    if authority is not None:
        context.load_verify_locations(cadata=authority.decode())
        context.verify_mode = ssl.CERT_REQUIRED

    def wrapped(accepted: socket.socket) -> None:
        with context.wrap_socket(
            accepted, server_side=True, do_handshake_on_connect=False
        ) as secure:
            try:
                secure.do_handshake()
            except ssl.SSLError:
                # A socket that is closed with unread bytes takes its alert back.
                secure.shutdown(socket.SHUT_WR)
                while secure.recv(4096):
                    pass
                return
            talk(secure)

    return wrapped
