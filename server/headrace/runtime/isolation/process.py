"""A worker process as the server sees it: started, spoken to, watched, ended."""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from headrace.runtime.cancel import CancelToken
from headrace.runtime.errors import HeadraceError, Unavailable
from headrace.runtime.isolation.channel import Channel, Disconnected, Message, channels
from headrace.runtime.isolation.failures import error_from_json
from headrace.runtime.isolation.output_log import OutputLog
from headrace.runtime.isolation.shared_memory import SegmentPool, map_file

_log = logging.getLogger(__name__)

_NUMBER = struct.Struct("<Q")
_LAST_WORDS_SECONDS = 2.0
_CLOSE_SECONDS = 10.0

Answer: TypeAlias = "tuple[Any, list[memoryview]]"
"""A call's result, and the bytes that came with it."""


class WorkerLost(Unavailable):
    """The worker did not live to answer."""


class WorkerProcess:
    """One worker, from its start to its end. Thread-safe.

    `_lock` guards calls that wait, idle lanes and `_ended`; `_cancelling` keeps the pipe from being
    closed under a thread that writes to it. A thread of its own reads answers and output.

    Args:
        device: names the process's threads and log lines.
        states: is told what the plugin says of its device, as state and reason.
    """

    def __init__(self, device: str, states: Callable[[str, str], None] | None = None) -> None:
        self.device = device
        self.pool = SegmentPool()
        self.useful = False
        """It has answered a request."""
        self.ended = threading.Event()
        self.reason = ""
        """How it ended, once `ended` is set."""
        self.states = states
        self._lock = threading.Lock()
        self._cancelling = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Answer]] = {}
        self._lanes: list[Channel] = []
        self._closing = False
        self._launch()
        self._reader = threading.Thread(
            target=self._read, name=f"headrace-worker-{device}", daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    # -- calls --

    def call(
        self,
        method: str,
        arguments: Mapping[str, Any] | None = None,
        files: Sequence[int] = (),
        *,
        token: CancelToken | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Has the worker do something, and waits for it.

        Args:
            files: descriptors of bytes to pass on; they stay the caller's.
            token: its cancellation is passed on.
            timeout: seconds after which the worker is killed.

        Raises:
            WorkerLost: the worker has ended.
            What the worker raised.
        """
        number, answer = self._expect()
        cancel = partial(self.cancel, number)
        try:
            header = {"call": number, "method": method, "arguments": arguments or {}}
            self._control.send(header, (), files)
            if token is not None:
                token.attach(cancel)
            return answer.result(timeout)
        except Disconnected as error:
            raise self.lost() from error
        except FutureTimeout:
            self.kill()
            raise WorkerLost(
                f"the worker of {self.device} took more than {timeout:g} seconds to {method}"
            ) from None
        finally:
            if token is not None:
                token.detach(cancel)
            with self._lock:
                self._waiting.pop(number, None)

    def ask(self, method: str) -> Future[Answer]:
        """Has the worker do something that cannot be cancelled, for whoever does not wait for it.

        Raises:
            WorkerLost: the worker has ended. The future raises as `call`.
        """
        number, answer = self._expect()
        try:
            self._control.send({"call": number, "method": method, "arguments": {}})
        except Disconnected as error:
            raise self.lost() from error  # and so is the answer that is expected
        return answer

    def _expect(self) -> tuple[int, Future[Answer]]:
        """The number of a call, and its answer; an end of the worker is one."""
        number, answer = next(self._numbers), Future[Answer]()
        with self._lock:
            if self.ended.is_set():
                raise self.lost()
            self._waiting[number] = answer
        return number, answer

    def number(self) -> int:
        """A number for a request; none is used twice."""
        return next(self._numbers)

    def cancel(self, number: int) -> None:
        """Says that nobody waits for a call or request any more; does not block."""
        with self._cancelling:
            if self._cancel is None:
                return
            try:
                os.write(self._cancel, _NUMBER.pack(number))
            except BlockingIOError:
                # 8,192 cancellations unread: the worker stands still, and its requests end with it.
                _log.warning("the worker of %s takes no cancellations", self.device)
            except OSError:
                pass  # it has ended

    # -- lanes --

    @contextmanager
    def lane(self) -> Iterator[Channel]:
        """A connection for one request at a time; closed if the request ends badly.

        Raises:
            WorkerLost: the worker has ended.
        """
        lane = self._take_lane()
        try:
            yield lane
        except BaseException:
            lane.close()
            raise
        with self._lock:
            if not self.ended.is_set():
                self._lanes.append(lane)
                return
        lane.close()

    def _take_lane(self) -> Channel:
        with self._lock:
            if self.ended.is_set():
                raise self.lost()
            if self._lanes:
                return self._lanes.pop()
        lane, theirs = channels()
        try:
            self._control.send({"method": "lane"}, (), (theirs.fileno(),))
        except Disconnected as error:
            lane.close()
            raise self.lost() from error
        finally:
            theirs.close()
        return lane

    def lost(self) -> WorkerLost:
        """The error of a request or call that the worker did not live to answer."""
        how = f" ({self.reason})" if self.reason else ""
        return WorkerLost(f"the worker process of device {self.device} ended{how}; try again")

    # -- the end --

    def kill(self) -> None:
        """Ends the worker at once."""
        self._process.kill()

    def stop(self) -> None:
        """Lets the worker close its device, and ends it."""
        self._closing = True
        try:
            self.call("close", timeout=_CLOSE_SECONDS)
        except WorkerLost:
            pass  # it has ended by itself
        except HeadraceError as error:
            _log.warning("the worker of %s did not close its device: %s", self.device, error)
        self._control.shutdown()
        self.join()

    def join(self) -> None:
        """Waits for the worker's end."""
        self._reader.join()

    # -- inside --

    def _launch(self) -> None:
        self._control, control = channels()
        self._cancel: int | None
        cancelled, self._cancel = self._pipe(blocking=False)
        living, self._life = self._pipe()
        output, written = self._pipe()
        given = (control.fileno(), cancelled, living)
        self._output = OutputLog(self.device, output)
        command = [sys.executable, "-m", "headrace.runtime.isolation.worker", *map(str, given)]
        try:
            with _stops_held():
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=written,
                    pass_fds=given,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
                )
        except BaseException:
            self._close()
            raise
        finally:
            control.close()
            for descriptor in (cancelled, living, written):
                os.close(descriptor)

    @staticmethod
    def _pipe(*, blocking: bool = True) -> tuple[int, int]:
        reader, writer = os.pipe()
        os.set_blocking(writer, blocking)
        return reader, writer

    def _read(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._control, selectors.EVENT_READ, self._take_message)
            ready.register(self._output, selectors.EVENT_READ, self._output.read)
            while True:
                for key, _ in ready.select():
                    try:
                        if not key.data():
                            ready.unregister(key.fileobj)
                    except Disconnected:
                        self._bury()
                        return

    def _take_message(self) -> bool:
        message = self._control.receive()
        if "state" in message.header:
            if self.states is not None:
                self.states(str(message.header["state"]), str(message.header.get("reason", "")))
            return True
        with self._lock:
            waiting = self._waiting.pop(message.header.get("call", 0), None)
        files = [map_file(descriptor) for descriptor in message.descriptors]
        if waiting is not None:
            self._settle(waiting, message, files)
        return True

    @staticmethod
    def _settle(waiting: Future[Answer], message: Message, files: list[memoryview]) -> None:
        if "error" in message.header:
            waiting.set_exception(error_from_json(message.header["error"]))
        else:
            waiting.set_result((message.header.get("result"), files))

    def _bury(self) -> None:
        """The connection has ended, and with it the worker."""
        try:
            self._process.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.finish()
        self.reason = _how(self._process.returncode)
        if not self._closing:
            _log.error("the worker of device %s ended: %s", self.device, self.reason)
        with self._lock:
            self.ended.set()
            waiting, self._waiting = list(self._waiting.values()), {}
            lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.close()
        self._close()
        for each in waiting:
            each.set_exception(self.lost())

    def _close(self) -> None:
        self.pool.close()
        self._control.close()
        self._output.close()
        with self._cancelling:
            descriptors, self._cancel = (self._cancel, self._life), None
        for descriptor in descriptors:
            if descriptor is not None:
                os.close(descriptor)


@contextmanager
def _stops_held() -> Iterator[None]:
    """A process that is made inside never gets SIGINT and SIGTERM, which a terminal or a supervisor
    may send to all processes at any moment: the server first finishes what runs, and then ends its
    workers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _import_path() -> list[str]:
    """What this process imports from, for the worker is to find the same plugins."""
    return [path or str(Path.cwd()) for path in sys.path]


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
