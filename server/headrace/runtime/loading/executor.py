"""The threads that load, query and close networks. With them no request waits behind a load."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from headrace.runtime.errors import (
    HeadraceError,
    Internal,
    ResourceExhausted,
    ShuttingDown,
    Stopped,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.keyed_executor import KeyedExecutor
from headrace.runtime.system.asker import Asker, asking, current_asker
from headrace.runtime.system.garbage import undisturbed
from headrace.runtime.system.interruption import interruptible

T = TypeVar("T")

_CAPACITY: Final = 256
"""How many tasks wait and run. An identity has at most half of that."""
_SPARE: Final = 6
"""How many tasks may run beside those that hold a place: tasks that nobody wants, and those of
identities that have no other running."""
_IDENTITIES: Final = 64
"""How many identities may free something at a time, or load something for a request."""


@dataclass(eq=False, slots=True)
class _Task:
    """One task, from when it is submitted until its future is done.

    Attributes:
        token: ends it at its next layer.
        who: the name of whoever asked for it; empty for the server, and for callers without an
            identity.
        at_once: whether it needs no place.
    """

    future: Future[Any]
    work: Callable[[], Any] | None
    token: CancelToken
    who: str
    at_once: bool


class _Promise(Future[Any]):
    """A task's future. Only its token ends a task: asyncio cancels a future when it cancels who
    waits for it.

    Its callbacks run one after the other, in their order. So the caller of a load, who asks for its
    end last, hears of it when all is done that follows from it, even if it asks after the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._telling = threading.Lock()  # guards `_to_tell`
        self._to_tell: deque[Callable[[Future[Any]], object]] | None = deque()
        super().add_done_callback(_Promise._tell)

    def cancel(self) -> bool:
        return False

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        with self._telling:
            if self._to_tell is not None:
                self._to_tell.append(fn)
                return
        super().add_done_callback(fn)

    @staticmethod
    def _tell(promise: Future[Any]) -> None:
        assert isinstance(promise, _Promise)
        while True:
            with promise._telling:
                if not promise._to_tell:
                    promise._to_tell = None
                    return
                fn = promise._to_tell.popleft()
            Future.add_done_callback(promise, fn)  # calls it now, and logs what it raises
            del fn


class LoadExecutor:
    """Runs a bounded number of tasks on a few threads, and closes networks on others.

    A task that nobody wants any more may be within a library that cannot be interrupted. It then
    leaves its place to another task, so that such tasks do not keep others waiting. `_SPARE` of
    them can do so at a time, and an identity has no more of them than there is room left. Of the
    tasks that wait, the next one is that of the identity which has the fewest running. If it has
    none, it runs beside the places: nobody waits for a task of another one that hangs. A task that
    those with a place may wait for needs none.

    What frees something runs beside all this, one after the other for each identity: a run or a
    compile that does not end keeps no network of another one in memory.

    Thread-safe: `_lock` guards what waits and what runs, and the flag that it has stopped.

    Args:
        threads: how many tasks hold a place.

    Attributes:
        asker: says on the thread that submits a task who asks for it.
    """

    def __init__(self, threads: int = 2, asker: Callable[[], Asker] = current_asker) -> None:
        self._lock = threading.Lock()
        self._threads = threads
        self.asker = asker
        self._tasks: dict[Future[Any], _Task] = {}
        self._waiting: list[_Task] = []
        self._ready: deque[_Task] = deque()
        self._placed: set[_Task] = set()
        self._beside: set[_Task] = set()
        self._stopped = False
        self._loading = ThreadPoolExecutor(
            threads + _SPARE + 1,  # for what begins at once
            thread_name_prefix="headrace-load",
        )
        self._closing = KeyedExecutor(_IDENTITIES, "headrace-close")
        self._for_requests = KeyedExecutor(_IDENTITIES, "headrace-further-load")

    def submit(
        self,
        task: Callable[[], T],
        token: CancelToken | None = None,
        asker: Asker | None = None,
        *,
        at_once: bool = False,
        bounded: bool = True,
    ) -> Future[T]:
        """Runs a client's task, in the context of the caller. So the log knows its request. Where
        the server goes on with what an `asker` has asked for, the task is that asker's.
        `give_up` and `stop_loading` end the task at its next layer. A task that heeds a `token` of
        its own is unwanted once that is cancelled. A task that waits ends with its token.

        Args:
            at_once: whether it needs no place. There should be one such task at a time.
            bounded: whether it is refused if too many wait. Whoever says no bounds them.

        Raises:
            ResourceExhausted: too many tasks wait already.
            Unavailable: the executor has stopped.
            The future raises what the task raises. If that is not an ordinary exception, it raises
            Internal.
        """
        asker, own = asker or self.asker(), CancelToken()
        work = partial(copy_context().run, _run, partial(_heeding, own, asker, task))
        added = _Task(_Promise(), work, own, asker.name, at_once)
        with self._lock:
            if self._stopped:
                raise ShuttingDown()
            if bounded:
                self._check_room(added.who)
            self._tasks[added.future] = added
            self._waiting.append(added)
        own.attach(partial(self._unwanted, added, own))
        if token is not None:
            leave = partial(self._unwanted, added, token)
            token.attach(leave)
            added.future.add_done_callback(lambda _: token.detach(leave))
        self._begin()
        return added.future

    def give_up(self, future: Future[T], error: HeadraceError) -> None:
        """Ends a task whose result nobody wants. Its future raises `error`."""
        with self._lock:
            task = self._tasks.get(future)
        if task is not None:
            task.token.cancel(error)

    def close(self, task: Callable[[], T], who: str = "") -> Future[T]:
        """Runs a task that frees something. The executor never refuses it before `stop`.

        Args:
            who: the name of whoever asked for what is freed.
        """
        return self._closing.submit(partial(_run, task), who)

    def load_for_request(self, task: Callable[[], T], who: str) -> Future[T]:
        """Runs a load that a request waits for, which a load with a place may wait for. It may not
        wait for such a load itself.

        Args:
            who: the name of whoever asked for what is loaded. Its loads run one after the other.

        Raises:
            RuntimeError: the executor has stopped, or the system has no thread.
        """
        return self._for_requests.submit(partial(_run, task), who)

    @property
    def is_busy(self) -> bool:
        """Whether tasks wait or run."""
        return bool(self._tasks)

    def stop_loading(self, *, wait: bool = True) -> None:
        """Drops the tasks that have not begun, ends the others at their next layer and waits for
        them. Closing goes on."""
        with self._lock:
            self._stopped = True
            tasks = [*self._tasks.values()]
        for task in tasks:
            task.token.cancel(Stopped("the server is shutting down; use another one"))
        self._loading.shutdown(wait=wait)

    def stop(self) -> None:
        """Stops loading, and also waits for the networks that are being closed."""
        self.stop_loading()
        self._for_requests.stop()
        self._closing.stop()

    def _check_room(self, who: str) -> None:
        """
        Raises:
            ResourceExhausted: there are too many tasks, or too many of this identity.
        """
        free = _CAPACITY - len(self._tasks)
        if free <= 0:
            raise ResourceExhausted(
                f"{len(self._tasks)} loads and queries are waiting, as many as the server "
                f"takes; try again later"
            )
        if not who:
            return
        mine = sum(task.who == who for task in self._tasks.values())
        mine += self._closing.waiting(who)
        if mine > free:
            raise ResourceExhausted(
                f"{mine} of your loads, queries and unloads are waiting, as many as one client may "
                f"have now; try again when some have ended"
            )

    def _begin(self) -> None:
        """Begins tasks for which there is a place."""
        while True:
            with self._lock:
                task = self._next()
                if task is None:
                    return
                self._waiting.remove(task)
                task.future.set_running_or_notify_cancel()
                if not task.at_once:
                    has_place = len(self._placed) < self._threads
                    (self._placed if has_place else self._beside).add(task)
                self._ready.append(task)
            del task
            try:
                self._loading.submit(self._work)
            except RuntimeError:  # it has stopped, or the system has no thread
                with self._lock:
                    if not self._ready:  # another thread has begun it: `submit` queues it first
                        continue
                    failed = self._ready.pop()
                self._leave(failed)
                failed.future.set_exception(
                    ResourceExhausted("the server has no thread for a load; try again later")
                )
                continue

    def _next(self) -> _Task | None:
        """The task to begin. The caller holds the lock."""
        for task in self._waiting:
            if task.at_once:
                return task
        running = Counter(task.who for task in (*self._placed, *self._beside))
        beside = Counter(task.who for task in self._beside)

        def has_room(who: str) -> bool:
            """Whether it may have one more task that leaves its place."""
            return not who or beside[who] < _SPARE - len(self._beside)

        may = [task for task in self._waiting if has_room(task.who) or not beside[task.who]]
        if not may:
            return None
        task = min(may, key=lambda each: running[each.who])
        beside_others = not running[task.who] and len(self._beside) < _SPARE
        return task if len(self._placed) < self._threads or beside_others else None

    def _work(self) -> None:
        """Does what is ready. It keeps no reference to it, so that the task's network is free when
        its future is done."""
        with self._lock:
            if not self._ready:  # it has failed, because the system had no thread
                return
            task = self._ready.popleft()
        work, task.work = task.work, None
        assert work is not None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            del work
            self._leave(task)
            task.future.set_exception(error)
        else:
            del work
            self._leave(task)
            task.future.set_result(result)
            del result
        del task
        self._begin()

    def _unwanted(self, task: _Task, token: CancelToken) -> None:
        """Ends a task that waits, and lets another one begin if it has not ended."""
        with self._lock:
            waits = task in self._waiting
            if waits:
                self._waiting.remove(task)
                del self._tasks[task.future]
            elif task in self._placed and len(self._beside) < _SPARE:
                self._placed.remove(task)
                self._beside.add(task)
        if waits:
            task.work = None
            task.future.set_running_or_notify_cancel()
            task.future.set_exception(token.error)
        self._begin()

    def _leave(self, task: _Task) -> None:
        """Makes room for another task. Nobody has heard yet that this one has ended."""
        with self._lock:
            self._placed.discard(task)
            self._beside.discard(task)
            del self._tasks[task.future]


def _heeding(token: CancelToken, asker: Asker, task: Callable[[], T]) -> T:
    with asking(asker), interruptible(token):
        return task()


def _run(task: Callable[[], T]) -> T:
    """Runs a task and turns unusual exceptions into ordinary errors. A SystemExit or a panic of a
    native library would end the thread that waits for the future, and a future cannot carry a
    StopIteration."""
    try:
        with undisturbed():
            return task()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise Internal(f"a task of the server ended with {type(error).__name__}") from error


def together(futures: Sequence[Future[None]]) -> Future[None]:
    """A future that is done when all futures are. It fails with the error of the first one that
    failed."""
    result: Future[None] = Future()
    ended = itertools.count(1)

    def one_ended(_: Future[None]) -> None:
        if next(ended) == len(futures):
            failed = next(
                (future for future in futures if future.exception() is not None), futures[0]
            )
            pass_on(result, failed)

    for future in futures:
        future.add_done_callback(one_ended)
    if not futures:
        result.set_result(None)
    return result


def pass_on(to: Future[None], done: Future[None]) -> None:
    """Gives the future `to` the outcome of the future `done`."""
    error = done.exception()
    if error is None:
        to.set_result(None)
    else:
        to.set_exception(error)
