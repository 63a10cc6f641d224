"""What all callers share: the server's address and credentials, counts, notes, and the pace."""

from __future__ import annotations

import json
import mmap
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from headrace.client import Client, errors
from tools.soak.ledger import End, Ledger, Notes, Row
from tools.soak.networks import Target, is_right

SECONDS = 300.0
"""How long a call may take: more than a worker needs to start again on a very busy machine."""
RUN, PAUSE, STOP = b"RPS"


class Phase:
    """One byte of a file that the soak writes and all clients read: run, pause or stop."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes([RUN]))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 1)

    @property
    def now(self) -> int:
        return self._map[0]

    def set(self, phase: int) -> None:
        self._map[0] = phase


@dataclass(frozen=True)
class Place:
    """Where the server is, and how a client gets in; from the file that the soak has written."""

    folder: Path
    target: str
    http: str
    token: str

    @classmethod
    def read(cls, folder: Path) -> Place:
        facts = json.loads((folder / "place.json").read_text())
        return cls(folder, facts["target"], facts["http"], facts["token"])

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    def client(self, **options: Any) -> Client:
        return Client(self.target, tls_ca=self.ca, token=self.token, timeout=SECONDS, **options)

    def channel(self) -> grpc.Channel:
        """A connection of its own, for calls without our client."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        credentials = grpc.ssl_channel_credentials(self.ca.read_bytes())
        return grpc.secure_channel(self.target, credentials, options)


class Caller:
    """One kind of load on one network, on a thread of its own, and what became of its requests.

    Attributes:
        errors: how many requests have failed.
    """

    def __init__(
        self, place: Place, row: Row, target: Target, ledger: Ledger, notes: Notes
    ) -> None:
        self.place = place
        self.row = row
        self.target = target
        self.errors = 0
        self._ledger = ledger
        self._notes = notes
        self._turn = 0

    def count(self, end: End, count: int = 1) -> None:
        self._ledger.add(self.row, end, count)

    def took(self, since: float) -> None:
        self._notes.took(self.row.kind, time.monotonic() - since)

    def sample(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The next inputs, and the outputs that are right."""
        self._turn += 1
        return self.target.samples[self._turn % len(self.target.samples)]

    def judge(self, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        """Counts an answer, and notes a wrong one."""
        self.count(End.OK)
        if not is_right(found, expected):
            self.wrong(f"{dict(found)} instead of {dict(expected)}")

    def wrong(self, text: str) -> None:
        self.note("WRONG", text)

    def failed(self, code: str, text: str, end: End = End.ERROR) -> None:
        """Counts and notes an error that a provocation has to explain."""
        self.count(end)
        self.errors += 1
        self.note(code, text)

    def note(self, code: str, text: str) -> None:
        """Notes an error outside of the counted requests. A provocation has to explain it."""
        self._notes.error(self.row, code, text)

    @contextmanager
    def sent(self) -> Iterator[None]:
        """A request: counted as sent, timed, and its error counted and noted."""
        self.count(End.SENT)
        begin = time.monotonic()
        try:
            yield
        except errors.Error as error:
            self.failed(error.code.name, f"{error.details.reason or ''} {error}")
        except grpc.RpcError as error:
            call: Any = error
            self.failed(call.code().name, call.details() or "")
        except OSError as error:
            self.failed("OSERROR", repr(error))
        self.took(begin)


Kind = Callable[[Caller], Generator[float]]
"""A load: yields the seconds to pause after each round of requests, and has then none in flight. It
closes what it has opened when it is closed."""
