"""A server stops, freezes, is killed, and comes back elsewhere, while many threads and tasks call:
no call hangs, none that may be repeated fails, none that must not be is begun twice.

The suite has a few absences; `make test-absences` has a hundred, or as many as ABSENCES says.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pytest

from headrace.client.channel.channel import CallFailed, CallOptions
from headrace.client.channel.connecting import parse
from headrace.client.channel.tasks.channel import LoopChannel
from headrace.client.channel.threads.channel import SocketChannel
from tests.support.patience import PATIENCE_SECONDS
from tests.support.ports import held_port

ABSENCES: Final = int(os.environ.get("ABSENCES", "4"))
THREADS: Final = 32
TASKS: Final = 8
TIMEOUT_SECONDS: Final = 60.0
SLACK_SECONDS: Final = 60.0
SHORT_SECONDS: Final = 1.0
"""A call has four attempts within some two seconds, which outlast an absence that is so short. On a
slow machine a server may come back later."""
LIMIT: Final = 1 << 20
PROGRAM: Final = Path(__file__).parents[1] / "support/absent_server.py"
ENDS: Final = ("stop", "kill", "freeze", "freeze and kill")

pytestmark = pytest.mark.timeout(1800)


class Process:
    """One server. Each is loaded before it is needed, so that absences are short."""

    def __init__(self, noted: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(noted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said("loaded")

    def listen(self, port: int) -> None:
        stdin = self._pipe(self._process.stdin)
        stdin.write(f"{port}\n")
        stdin.flush()
        self._said("listening")

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            self._pipe(pipe).close()

    def wait(self) -> None:
        self._process.wait()

    def _said(self, word: str) -> None:
        assert self._pipe(self._process.stdout).readline().strip() == word

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


class Place:
    """A name whose server comes and goes.

    Attributes:
        port: what the name stands for now.
        long: begin and end of each absence that a call need not outlast.
    """

    def __init__(self, noted: Path) -> None:
        self._noted = noted
        self._spare = Process(noted)
        self.port = 0
        self.long: list[tuple[float, float]] = []
        self._now = self._come()

    def _come(self) -> Process:
        """A server at a new port, which the name stands for from now on."""
        came, port = self._spare, held_port()
        came.listen(port)
        self.port = port
        self._came = time.monotonic()
        self._spare = Process(self._noted)
        return came

    def leave(self, end: str) -> None:
        """The server goes in some way, and another one comes elsewhere; or it thaws."""
        gone = self._now
        if end == "stop":
            self._now = self._come()
            gone.send(signal.SIGTERM)
            gone.wait()
            gone.end()
            return
        if end.startswith("freeze"):
            gone.send(signal.SIGSTOP)
            time.sleep(random.uniform(0.1, 0.6))
        if end == "freeze":
            gone.send(signal.SIGCONT)
            return
        left = time.monotonic()
        gone.end()
        time.sleep(random.uniform(0.0, 0.4))
        self._now = self._come()
        if self._came - left > SHORT_SECONDS:
            self.long.append((left, self._came))

    def close(self) -> None:
        self._now.end()
        self._spare.end()


@contextmanager
def resolving(place: Place) -> Iterator[None]:
    """Has the name looked up as the place."""
    real = socket.getaddrinfo

    def found(host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        if host == "server.test":
            host, port = "127.0.0.1", place.port
        return real(host, port, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", found)
        yield


class Outcomes:
    """What came of the calls. Thread-safe.

    Attributes:
        codes: how often each method ended with each status.
        wrong: what must not be.
        failed: calls that must not fail but in a long absence: begin, end, and how.
    """

    def __init__(self) -> None:
        self.codes: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.failed: list[tuple[float, float, str]] = []
        self._changed = threading.Condition()
        self._began: dict[bytes, float] = {}  # by caller: its last call that has ended

    def await_calls(self, callers: int) -> None:
        """Until each caller has made a whole call from now on. So none meets two absences."""
        now = time.monotonic()
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(began > now for began in self._began.values()) == callers,
                PATIENCE_SECONDS,
            )

    def note(
        self, method: str, request: bytes, began: float, result: CallFailed | bytes | memoryview
    ) -> None:
        ended = time.monotonic()
        seconds = ended - began
        failed = isinstance(result, CallFailed)
        with self._changed:
            self._began[request.rpartition(b" ")[0]] = began
            self._changed.notify_all()
            code = result.code.name if isinstance(result, CallFailed) else "OK"
            self.codes[method, code] += 1
            if seconds > TIMEOUT_SECONDS + SLACK_SECONDS:
                self.wrong.append(f"{method} took {seconds:.1f} s: {code}")
            if failed and method == "Many":
                said = f"{method} failed after {seconds:.2f} s: {code}: {result!r}"
                self.failed.append((began, ended, said))
            if not isinstance(result, CallFailed) and bytes(result) != request:
                self.wrong.append(f"{method} has another call's reply")
            # grpcio's server cancels calls that have come, and that it has not begun when it stops.
            if code not in ("OK", "UNAVAILABLE", "CANCELLED"):
                self.wrong.append(f"{method}: {code}: {result!r}")


def calls_of_thread(
    channel: SocketChannel, number: int, over: threading.Event, outcomes: Outcomes
) -> None:
    """Every fourth thread makes calls that must not be repeated, every eighth starts calls."""
    method = "Once" if number % 4 == 0 else "Many"
    starts = number % 8 == 1
    count = 0
    while not over.is_set():
        request = b"%s %d %d" % (method.encode(), number, count)
        count += 1
        options = CallOptions(TIMEOUT_SECONDS, repeat=method == "Many")
        began = time.monotonic()
        result: CallFailed | bytes | memoryview
        try:
            if starts:
                result = channel.start(f"/t/{method}", request, options).result(120.0).message
            else:
                result = channel.unary(f"/t/{method}", request, options).message
        except CallFailed as failure:
            result = failure
        outcomes.note(method, request, began, result)


def calls_of_tasks(over: threading.Event, outcomes: Outcomes) -> None:
    async def call(channel: LoopChannel, number: int) -> None:
        method = "Once" if number % 4 == 0 else "Many"
        count = 0
        while not over.is_set():
            request = b"%s task %d %d" % (method.encode(), number, count)
            count += 1
            began = time.monotonic()
            result: CallFailed | bytes | memoryview
            try:
                options = CallOptions(TIMEOUT_SECONDS, repeat=method == "Many")
                reply = await channel.unary(f"/t/{method}", request, options)
                result = reply.message
            except CallFailed as failure:
                result = failure
            outcomes.note(method, request, began, result)

    async def run() -> None:
        channel = LoopChannel(parse("server.test"), max_message_bytes=LIMIT)
        await asyncio.gather(*(call(channel, number) for number in range(TASKS)))
        await channel.close()

    asyncio.run(run())


def test_absences_of_a_server_cost_no_call_that_may_be_repeated(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    place, outcomes, over = Place(noted), Outcomes(), threading.Event()
    channel = SocketChannel(parse("server.test"), max_message_bytes=LIMIT)
    try:
        with resolving(place), ThreadPoolExecutor(THREADS + 1) as pool:
            work: list[Any] = [
                pool.submit(calls_of_thread, channel, number, over, outcomes)
                for number in range(THREADS)
            ]
            work.append(pool.submit(calls_of_tasks, over, outcomes))
            try:
                for number in range(ABSENCES):
                    outcomes.await_calls(THREADS + TASKS)
                    place.leave(ENDS[number % len(ENDS)])
                outcomes.await_calls(THREADS + TASKS)
            finally:
                over.set()
            for each in work:
                each.result()
    finally:
        channel.close()
        place.close()
    begun = Counter(noted.read_bytes().splitlines())
    twice = [request for request, times in begun.items() if times > 1 and b"Once" in request]
    print(dict(outcomes.codes), f"{sum(times > 1 for times in begun.values())} begun twice")
    assert not outcomes.wrong, outcomes.wrong[:20]
    failed = [
        said
        for began, ended, said in outcomes.failed
        if not any(left < ended and began < came for left, came in place.long)
    ]
    assert not failed, failed[:20]
    assert not twice, twice[:20]
    assert outcomes.codes["Many", "OK"] > 100
    assert outcomes.codes["Once", "OK"] > 20


def in_child(call: Callable[[], bytes], expected: bytes) -> int:
    """The process of a child that makes a call, and ends with 0 if its reply is right."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if call() == expected else 1)
        except BaseException as error:  # noqa: BLE001 - it must not go on as the parent would
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(2)
    return child


FORKS: Final = int(os.environ.get("FORKS", "10"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_children_that_are_forked_under_load_call_as_their_parent_does(tmp_path: Path) -> None:
    place, outcomes, over = Place(tmp_path / "noted"), Outcomes(), threading.Event()
    channel = SocketChannel(parse("server.test"), max_message_bytes=LIMIT)

    def child(number: int) -> bytes:
        reply = channel.unary("/t/Once", b"child %d" % number, CallOptions(TIMEOUT_SECONDS))
        started = channel.start("/t/Once", b"again %d" % number, CallOptions(TIMEOUT_SECONDS))
        assert bytes(started.result(60.0).message) == b"again %d" % number
        return bytes(reply.message)

    ended = []
    try:
        with resolving(place), ThreadPoolExecutor(8) as pool:
            work = [
                pool.submit(calls_of_thread, channel, number, over, outcomes) for number in range(8)
            ]
            try:
                for number in range(FORKS):
                    forked = in_child(lambda: child(number), b"child %d" % number)  # noqa: B023
                    ended.append(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
            finally:
                over.set()
            for each in work:
                each.result()
    finally:
        channel.close()
        place.close()
    assert set(ended) == {0}
    assert not outcomes.wrong, outcomes.wrong[:20]
    assert not [key for key in outcomes.codes if key[1] != "OK"], outcomes.codes
