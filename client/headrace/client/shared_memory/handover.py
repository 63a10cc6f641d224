"""Memory without a name that the client hands to a server on this machine, by file descriptor.

The server listens on a second Unix socket, beside gRPC's. It forgets the memory when the connection
to that socket ends, so nothing is left of a client that was killed.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc

from headrace.client import errors
from headrace.client.plans.plan import CallBlocking
from headrace.client.shared_memory.segment import ClientSegment
from headrace.ipc import segments
from headrace.ipc.link import Disconnected, Link, packed
from headrace.wire.errors import ErrorDetails

_SUFFIX = ".memory"  # the server adds it to the path of gRPC's socket
SECONDS: Final = 5.0
_MAX_MESSAGE_BYTES: Final = 64 << 10
_TAKE_BACK_SECONDS: Final = 0.05


class Handover:
    """A client's connection to the side socket of its server. It connects when it is needed, and
    again if it was lost. Thread-safe; `_lock` guards the link and is held for one exchange.

    Args:
        path: the path of the side socket.
        metadata: gives the metadata that each call sends, with the token.
    """

    def __init__(self, path: str, metadata: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._path = path
        self._metadata = metadata
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._closed = False
        self._process = os.getpid()
        self._count = 0

    def inherit(self) -> None:
        """Leaves the connection to the process that this one was forked from."""
        self._lock = threading.Lock()

    def make(self, size: int) -> HandedSegment:
        """New memory, which the server does not know yet.

        Raises:
            OSError: the system has no room.
        """
        return HandedSegment(self, size)

    def hand_over(self, descriptor: int) -> str:
        """Hands a memfd over, and returns the name under which requests name its memory.

        Raises:
            OSError: there is no such socket, or its server does not answer.
            Error: the server's refusal.
        """
        with self._lock:
            try:
                answer = self._handed(descriptor)
            except Disconnected:  # the server was started again
                self._drop()
                answer = self._handed(descriptor)
            except OSError:
                self._drop()
                raise
        name = answer.get("region")
        if not isinstance(name, str):
            raise errors.bad_reply("the answer on the side socket names no memory")
        return name

    def _handed(self, descriptor: int) -> Mapping[str, Any]:
        """One exchange, with the lock held."""
        if self._link is None:
            self._link = self._connect()
        self._count += 1
        return _ask(self._link, {"id": self._count}, [descriptor])

    def take_back(self, name: str) -> None:
        """Tells the server to forget memory. Does not wait for that. Memory of an earlier
        connection is forgotten already."""
        link = self._link
        if link is not None and os.getpid() == self._process:
            with suppress(OSError):  # the connection has ended, or will be ended with `close`
                link.send(packed({"take_back": name}), within=_TAKE_BACK_SECONDS)

    def close(self) -> None:
        """Ends the connection. The server then forgets all memory. Idempotent."""
        with self._lock:
            self._closed = True
            self._drop()

    def _connect(self) -> Link:
        if self._closed or os.getpid() != self._process:
            raise ConnectionError("the client is closed, or was forked")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(SECONDS)
            connection.connect(self._path)
            link = Link(connection, _MAX_MESSAGE_BYTES, 1)
            _ask(link, dict(self._metadata()))
        except BaseException:
            connection.close()
            raise
        return link

    def _drop(self) -> None:
        if self._link is not None and os.getpid() == self._process:
            self._link.close()
            self._link = None


class HandedSegment(ClientSegment):
    """Memory of this process without a name. Nobody can make it shorter, so it is safe to map.

    `_lock` guards the descriptor: a task that hands the memory over may be cancelled, and the
    segment be removed, while a thread still does the work.
    """

    def __init__(self, handover: Handover, size: int) -> None:
        self.name = ""  # until it is handed over
        self.size = size
        self._handover = handover
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._shared = segments.Segment.create(0, size, reserve=False)
        self.memory = self._shared.array

    def registration(self) -> CallBlocking:
        return CallBlocking(self._hand_over)

    def _hand_over(self) -> None:
        """
        Raises:
            OSError: the segment was removed, or as `Handover.hand_over`.
        """
        with self._lock:
            descriptor = self._shared.descriptor
            if descriptor is None:
                raise ConnectionAbortedError
            own = os.dup(descriptor)
        try:
            segments.reserve_pages(own, self.size)
            name = self._handover.hand_over(own)
        finally:
            os.close(own)
        with self._lock:
            self.name = name
            if self._shared.descriptor is None:
                self._handover.take_back(name)

    def remove(self) -> None:
        """Has the server forget the memory. The system frees it when nobody has it mapped."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._shared.descriptor is not None:
                if self.name:
                    self._handover.take_back(self.name)
                self._shared.known()


def side_path(target: str) -> str | None:
    """The path of the side socket, if `target` is a Unix socket; otherwise None."""
    if not target.startswith("unix:"):
        return None
    return target.removeprefix("unix:").removeprefix("//") + _SUFFIX


def _ask(
    link: Link, question: dict[str, Any], descriptors: Sequence[int] = ()
) -> Mapping[str, Any]:
    """Sends a message and returns its answer.

    Raises:
        OSError: there is no answer.
        Error: the server's refusal.
    """
    link.send(packed(question, (), len(descriptors)), descriptors)
    # Answers to `take_back` come between, and nobody waits for them.
    while (answer := link.receive().header).get("id") != question.get("id"):
        pass
    refusal = answer.get("error")
    if refusal is not None:
        code = grpc.StatusCode[refusal["code"]]
        text, reason = refusal["message"], refusal.get("reason", "")
        raise errors.from_details(ErrorDetails(code, text, reason=reason))
    return answer
