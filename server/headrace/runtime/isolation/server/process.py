"""The server's side of a worker process: starts, calls, watches and ends it."""

from __future__ import annotations

import itertools
import logging
import math
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeAlias

from headrace.ipc.link import Disconnected, Link, Message, links, packed
from headrace.ipc.pool import SegmentPool
from headrace.ipc.segments import map_files
from headrace.runtime.errors import FailedPrecondition, HeadraceError, Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.intake.model_files import ModelFiles
from headrace.runtime.isolation.server.blame import End, Work
from headrace.runtime.isolation.server.lanes import Lanes, WatchedLanes
from headrace.runtime.isolation.server.launch import crashed, how, launch
from headrace.runtime.isolation.server.output_log import OutputLog
from headrace.runtime.isolation.wire.failures import error_from_json, error_to_json

_log = logging.getLogger(__name__)

_LAST_WORDS_SECONDS = 2.0
_CLOSE_SECONDS = 10.0
_PULSE_SECONDS = 10.0
_STILL_SECONDS = 120.0
"""A worker that is still for so long hangs. A backend may hold the interpreter while it reads."""

_PROMPT_SECONDS = 2.0
"""While a call takes longer, no other call is made that has patience."""
_MOST_PATIENT = 16
"""How many threads may wait for a worker's answers to calls that have patience."""
_GRACE_SECONDS = 2.0
"""How long a thread waits for an answer that nobody wants any more. Most work ends by itself at its
next layer."""
_TELL_SECONDS = 0.1
_MOST_LEFT = 4
"""How many such answers a worker may owe before it gets no more work that may be left."""

Answer: TypeAlias = "tuple[Any, list[memoryview]]"
"""A call's result, and the bytes that came with it."""


class WorkerLost(Unavailable):
    """The worker ended before it answered."""


class Left(Exception):
    """Whoever wanted a call's answer has left, and the worker has not answered.

    Attributes:
        error: says why, as the token of the call does.
        answer: what the worker will answer, if it ever does.
    """

    def __init__(self, error: HeadraceError, answer: Future[Answer]) -> None:
        super().__init__(error.message)
        self.error = error
        self.answer = answer


class WorkerProcess:
    """One worker, from its start to its end. Thread-safe.

    `_lock` guards waiting calls and the setting of `ended`. A separate thread reads answers and
    output.

    Args:
        device: the device's name, for thread names and log lines.

    Raises:
        OSError, RuntimeError: the system has no process, descriptor or thread for it.

    Attributes:
        states: called with the state and the reason that the plugin reports for its device.
        judge: called with the worker's end, before any waiting call hears of it.
        watched: the lanes on which no thread waits; None if nothing reads them.
        numbers: of calls, networks, requests and segments. None comes twice.
        models: make the models of networks, by number, of which the worker knows all but the graph.
            It may ask for each one once. Single operations are atomic.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.numbers = itertools.count(1)
        self.pool = SegmentPool(self.numbers)
        self.useful = False
        """Whether the worker has answered a request."""
        self.ended = threading.Event()
        self.end = End("", crashed=False, works=())
        """How the worker ended, once `ended` is set."""
        self.states: Callable[[str, str], None] | None = None
        self.judge: Callable[[End], None] | None = None
        self.watched: WatchedLanes | None = None
        self.models: dict[int, Callable[[], ModelFiles]] = {}
        self.under_way: list[Work] = []
        """What the worker does; adding and removing are atomic."""
        self._bounds: list[tuple[float, Work]] = []
        self._killed_for: Work | None = None
        self._killed_because = ""
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {}
        self._patient: dict[int, float] = {}  # when each began; single operations are atomic
        self._late: set[int] = set()
        self._left: set[int] = set()
        self.lanes = Lanes(self.connect)
        self._closing = False
        launched = launch()
        self._process, self._control = launched.process, launched.control
        self._cancel = launched.cancel
        self._life = launched.life
        self._output = OutputLog(device, launched.output)
        self._reader = threading.Thread(
            target=self._read, name=f"headrace-worker-{device}", daemon=True
        )
        try:
            self._reader.start()
        except BaseException:
            self._process.kill()
            self._bury()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    # -- calls --

    @contextmanager
    def doing(self, work: Work, seconds: float = math.inf) -> Iterator[None]:
        """Records `work` as under way. If the worker ends inside the context, `work` may be why.
        Work whose caller has left is under way until the worker answers.

        Args:
            seconds: after how long the worker is killed because of the work, at its next pulse.

        Raises:
            The error of `Left`, in its place.
        """
        bound = (time.monotonic() + seconds, work)
        self._bounds.append(bound)
        self.under_way.append(work)

        def over(_: object = None) -> None:
            self.under_way.remove(work)
            self._bounds.remove(bound)

        with ExitStack() as stack:
            stack.callback(over)
            try:
                yield
            except WorkerLost:
                self.ended.wait()
                raise
            except Left as left:
                stack.pop_all()
                left.answer.add_done_callback(over)
                raise left.error from None

    def call(
        self,
        method: str,
        arguments: Mapping[str, Any] | None = None,
        files: Sequence[int] = (),
        *,
        token: CancelToken | None = None,
        timeout: float | None = None,
        patience: float | None = None,
    ) -> Answer:
        """Has the worker do something, and waits for it.

        Args:
            files: descriptors of files to pass on; the caller still owns them.
            token: if it is cancelled, the worker's call is too, and soon nobody waits for it.
            timeout: seconds after which the worker is killed.
            patience: seconds after which nobody waits any more. While such a call is late, no other
                one is made, so that a worker that hangs holds few threads.

        Raises:
            WorkerLost: the worker has ended.
            Unavailable: the worker does not answer within `patience`, or owes too many answers to
                callers who have left.
            Left: the token is cancelled, and the worker goes on nevertheless.
            Any error that the worker raised.
        """
        if patience is not None:
            self._check_patient(method)
        if token is not None and len(self._left) >= _MOST_LEFT:
            raise self._silent(method)
        number, answer = self._expect()
        if patience is not None:
            self._patient[number] = time.monotonic()
        unwanted: Future[Any] = Future()

        def leave() -> None:
            self.cancel(number)
            unwanted.set_result(None)

        try:
            header = {"call": number, "method": method, "arguments": arguments or {}}
            self._control.send(packed(header, (), len(files)), files, within=patience)
            if token is not None:
                token.attach(leave)
                wait([answer, unwanted], return_when=FIRST_COMPLETED)
                wait((answer,), _GRACE_SECONDS)
                if token.error is not None and not answer.done():
                    self._left.add(number)
                    answer.add_done_callback(lambda _: self._left.discard(number))
                    raise Left(token.error, answer)
            return answer.result(timeout if patience is None else patience)
        except Disconnected as error:
            raise self.lost() from error
        except BlockingIOError as error:
            raise self._silent(method) from error
        except FutureTimeout:
            if patience is not None:
                self._is_late(number)
                raise self._silent(method) from None
            self.kill()
            raise WorkerLost(
                f"the worker of {self.device} took more than {timeout:g} seconds to {method}"
            ) from None
        finally:
            if token is not None:
                token.detach(leave)
            self._patient.pop(number, None)
            with self._lock:
                if number not in self._left:
                    self._waiting.pop(number, None)

    def tell(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Has the worker do something of which nobody wants to hear. It waits for a moment, as
        another thread may be sending."""
        header = {"call": next(self.numbers), "method": method, "arguments": arguments}
        try:
            self._control.send(packed(header), within=_TELL_SECONDS)
        except BlockingIOError:
            _log.warning("the worker of %s takes no calls (%s)", self.device, method)
        except Disconnected:
            pass  # the worker has ended

    def order(self, method: str, arguments: Mapping[str, Any], patience: float) -> None:
        """Has the worker do something that has to be done, even if it answers late.

        Args:
            patience: how many seconds to wait for the answer. Nobody waits for a worker that
                answers late already.

        Raises:
            WorkerLost: the worker has ended.
            Any error that the worker raised.
        """
        number, answer = self._expect()
        header = {"call": number, "method": method, "arguments": arguments}
        try:
            self._control.send(packed(header), within=patience)
            answer.result(0.0 if self._late else patience)
        except Disconnected as error:
            raise self.lost() from error
        except (BlockingIOError, FutureTimeout) as error:
            if isinstance(error, FutureTimeout):
                self._is_late(number)
            _log.warning("the process of device %s does not answer (%s)", self.device, method)
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _is_late(self, number: int) -> None:
        """Notes that a call's answer is late, if it has not come meanwhile."""
        with self._lock:
            if number in self._waiting:
                self._late.add(number)

    def _check_patient(self, method: str) -> None:
        """
        Raises:
            Unavailable: the worker answers late, or has too many calls to answer.
        """
        since = min(list(self._patient.values()), default=math.inf)
        slow = time.monotonic() - since > _PROMPT_SECONDS
        if self._late or slow or len(self._patient) >= _MOST_PATIENT:
            raise self._silent(method)

    def _silent(self, method: str) -> Unavailable:
        error = Unavailable(
            f"the process of device {self.device} does not answer now ({method}); try again later"
        )
        error.retry_delay_seconds = _PROMPT_SECONDS
        return error

    def ask(self, method: str) -> Future[Answer]:
        """Makes a call without waiting for its answer, and has the worker unmap dropped segments.

        Raises:
            WorkerLost: the worker has ended. The future raises as `call`.
        """
        number, answer = self._expect()
        try:
            header = {"call": number, "method": method, "forget": self.pool.forgotten()}
            self._control.send(packed(header))
        except Disconnected as error:
            raise self.lost() from error  # `_bury` fails the future too
        return answer

    def _expect(self) -> tuple[int, Future[Answer]]:
        """The number of a new call, and the future of its answer. If the worker ends, the future
        raises WorkerLost."""
        number, answer = next(self.numbers), Future[Answer]()
        with self._lock:
            if self.ended.is_set():
                raise self.lost()
            self._waiting[number] = answer
        return number, answer

    def cancel(self, number: int) -> None:
        """Tells the worker that nobody waits for a call or request any more; does not block."""
        try:
            self._cancel.send(packed({"cancel": number}))
        except BlockingIOError:
            # Hundreds of cancellations are unread, so the worker hangs. Its requests end with it.
            _log.warning("the worker of %s takes no cancellations", self.device)
        except Disconnected:
            pass  # the worker has ended

    # -- lanes --

    def connect(self, *, within: float | None = None) -> Link:
        """A new lane.

        Args:
            within: as `Link.send`.

        Raises:
            WorkerLost: the worker has ended.
            OSError: the system has no descriptor for it, or the worker takes nothing now.
        """
        lane, theirs = links()
        try:
            self._control.send(packed({"method": "lane"}, (), 1), (theirs.fileno(),), within)
        except BlockingIOError:
            lane.close()
            raise
        except Disconnected as error:
            lane.close()
            raise self.lost() from error
        finally:
            theirs.close()
        return lane

    def lost(self) -> WorkerLost:
        """The error of a request or call whose worker ended before it answered."""
        known = f" ({self.end.how})" if self.end.how else ""
        return WorkerLost(f"the worker process of device {self.device} ended{known}; try again")

    def broken(self) -> WorkerLost:
        """The error of a request whose lane has closed. Usually the worker has ended too. If it has
        not, this kills it, because a worker that closes a lane can no longer be trusted."""
        if not self.ended.wait(2 * _LAST_WORDS_SECONDS):
            self.kill("it closed a connection")
            self.ended.wait()
        return self.lost()

    # -- the end --

    def kill(self, because: str = "", work: Work | None = None) -> None:
        """Ends the worker at once.

        Args:
            because: the reason, reported next to the signal.
            work: the work that is the reason, whatever else the worker does.
        """
        self._killed_because, self._killed_for = because, work
        self._process.kill()

    def discard(self) -> None:
        """Ends the worker at once. Nobody is to blame. Does not block."""
        self._closing = True
        self.judge = None
        self._process.kill()

    def watch(self) -> None:
        """Waits for the worker's end; kills the worker if it hangs, or is too long at a work."""
        while not self.ended.wait(_PULSE_SECONDS):
            late = [work for until, work in self._bounds if until < time.monotonic()]
            if late:
                self.kill("it took too long", late[0])
            try:
                pulse = self.ask("pulse")
                wait((pulse,), _STILL_SECONDS)
            except WorkerLost:
                continue
            if not pulse.done():
                self.kill(f"it gave no answer for {_STILL_SECONDS:g} s")

    def stop(self) -> None:
        """Lets the worker close its device, and then ends the worker."""
        self._closing = True
        try:
            with suppress(WorkerLost):  # the worker has ended by itself
                self.call("close", timeout=_CLOSE_SECONDS)
        except HeadraceError as error:
            _log.warning("the worker of %s did not close its device: %s", self.device, error)
        self._control.shutdown()
        self.join()

    def join(self) -> None:
        """Waits for the worker's end."""
        self._reader.join()

    # -- inside --

    def _read(self) -> None:
        try:
            with suppress(Disconnected):
                self._take_messages()
        except Exception:  # noqa: BLE001 - everybody who waits must hear of the end
            _log.exception("a message of the worker of device %s was not understood", self.device)
            self.kill("it sent an unknown message")
        self._bury()

    def _take_messages(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._control, selectors.EVENT_READ, self._take_control)
            ready.register(self._output, selectors.EVENT_READ, self._output.read)
            while True:
                for key, _ in ready.select():
                    if not key.data():
                        ready.unregister(key.fileobj)

    def _take_control(self) -> bool:
        self._control.read()
        while (message := self._control.take()) is not None:
            self._take_message(message)
        return True

    def _take_message(self, message: Message) -> None:
        files = map_files(message.descriptors)
        if "model" in message.header:
            self._give_model(message.header["model"])
            return
        if "state" in message.header:
            if self.states is not None:
                self.states(str(message.header["state"]), str(message.header.get("reason", "")))
            return
        told = message.header.get("error")
        error = error_from_json(told) if told is not None else None
        number = message.header.get("call", 0)
        with self._lock:  # last, because a call that waits no more does not hear of a failure
            waiting = self._waiting.pop(number, None)
            self._late.discard(number)
        if waiting is not None:
            if error is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result((message.header.get("result"), files))

    def _give_model(self, number: int) -> None:
        """Has a thread send a model, because making it may take as long as a load."""
        make = self.models.pop(number, None)
        with suppress(RuntimeError):  # the system has no thread now
            if make is not None:
                threading.Thread(
                    target=self._send_model,
                    args=(number, make),
                    name=f"headrace-model-{self.device}",
                    daemon=True,
                ).start()
                return
        gone = FailedPrecondition("its graph is not to be had any more; load it again")
        self.tell("model", {"number": number, "error": error_to_json(gone)})

    def _send_model(self, number: int, make: Callable[[], ModelFiles]) -> None:
        files: Sequence[int] = ()
        try:
            model = make()
            told, files = {"model": model.to_json()}, model.descriptors
        except Exception as error:  # noqa: BLE001 - as a load may raise anything
            told = {"error": error_to_json(error)}
        header = {"method": "model", "arguments": {"number": number, **told}}
        with suppress(Disconnected):  # the worker has ended
            self._control.send(packed(header, (), len(files)), files)

    def _bury(self) -> None:
        """Cleans up after the worker, whose connection has ended."""
        try:
            self._process.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.finish()
        self.end = self._ending(self._process.returncode)
        if not self._closing:
            _log.error("the worker of device %s ended: %s", self.device, self.end.how)
        judge = self.judge  # `discard` may take it
        if judge is not None:
            try:
                judge(self.end)
            except Exception:  # noqa: BLE001 - as above
                _log.exception("it is not known what ended the worker of %s", self.device)
        with self._lock:
            self.ended.set()
            waiting, self._waiting = list(self._waiting.values()), {}
        self.models.clear()
        self.lanes.close()
        self._close()
        for answer in waiting:
            answer.set_exception(self.lost())
        if self.watched is not None:
            self.watched.wait(_LAST_WORDS_SECONDS)

    def _ending(self, status: int) -> End:
        because = f": {self._killed_because}" if self._killed_because else ""
        if self._killed_for is not None:
            works, others = (self._killed_for,), len(self.under_way) > 1
            return End(f"{how(status)}{because}", crashed=True, works=works, others=others)
        return End(f"{how(status)}{because}", crashed(status), tuple(self.under_way))

    def _close(self) -> None:
        self.pool.close()
        self._control.close()
        self._cancel.close()
        self._output.close()
        os.close(self._life)
