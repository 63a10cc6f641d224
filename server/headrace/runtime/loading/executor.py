"""The threads that load, query and close networks. With them no request waits behind a load."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
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
from headrace.runtime.system.garbage import undisturbed
from headrace.runtime.system.interruption import interruptible

T = TypeVar("T")

_SPARE: Final = 6
"""How many tasks that nobody wants may run beside those that somebody wants."""


class LoadExecutor:
    """Runs a bounded number of tasks on a few threads, and closes networks on a separate thread.

    A task that nobody wants any more may be within a library that cannot be interrupted. It then
    leaves its place to another task, so that such tasks do not keep others waiting. `_SPARE` of
    them can do so at a time.

    Thread-safe: `_lock` guards what waits and what runs, the tokens and the flag that it has
    stopped.
    """

    def __init__(self, threads: int = 2, capacity: int = 256) -> None:
        self._lock = threading.Lock()
        self._threads = threads
        self._capacity = capacity
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._ready: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._wanted: set[Future[Any]] = set()
        self._unwanted: set[Future[Any]] = set()
        self._tokens: dict[Future[Any], CancelToken] = {}
        self._stopped = False
        self._loading = ThreadPoolExecutor(threads + _SPARE, thread_name_prefix="headrace-load")
        self._closing = ThreadPoolExecutor(1, thread_name_prefix="headrace-close")

    def submit(self, task: Callable[[], T], token: CancelToken | None = None) -> Future[T]:
        """Runs a client's task, in the context of the caller. So the log knows its request.
        `give_up` and `stop_loading` end the task at its next layer. A task that heeds a `token` of
        its own is unwanted once that is cancelled.

        Raises:
            ResourceExhausted: too many tasks wait already.
            Unavailable: the executor has stopped.
            The future raises what the task raises. If that is not an ordinary exception, it raises
            Internal.
        """
        own = CancelToken()
        future: Future[T] = Future()
        work = partial(copy_context().run, _run, partial(_heeding, own, task))
        with self._lock:
            if self._stopped:
                raise ShuttingDown()
            if len(self._tokens) >= self._capacity:
                raise ResourceExhausted(
                    f"{len(self._tokens)} loads and queries are waiting, as many as the server "
                    f"takes; try again later"
                )
            self._tokens[future] = own
            self._waiting.append((future, work))
        future.add_done_callback(self._ended)
        leave = partial(self._leave_place, future)
        own.attach(leave)
        if token is not None:
            token.attach(leave)
            future.add_done_callback(lambda _: token.detach(leave))
        self._begin()
        return future

    def give_up(self, future: Future[T], error: HeadraceError) -> None:
        """Ends a task whose result nobody wants. Its future raises `error`, or is cancelled if the
        task has not begun."""
        with self._lock:
            token = self._tokens.get(future)
        if token is not None and not future.cancel():
            token.cancel(error)

    def close(self, task: Callable[[], T]) -> Future[T]:
        """Runs a task that frees something. The executor never refuses it before `stop`."""
        return self._closing.submit(_run, task)

    def stop_loading(self) -> None:
        """Drops the tasks that have not begun, ends the others at their next layer and waits for
        them. Closing goes on."""
        with self._lock:
            self._stopped = True
            waiting, tokens = [future for future, _ in self._waiting], [*self._tokens.values()]
            self._waiting.clear()
        for future in waiting:
            future.cancel()
        for token in tokens:
            token.cancel(Stopped("the server is shutting down; use another one"))
        self._loading.shutdown()

    def stop(self) -> None:
        """Stops loading, and also waits for the networks that are being closed."""
        self.stop_loading()
        self._closing.shutdown()

    def _begin(self) -> None:
        """Begins tasks for which there is a place."""
        while True:
            with self._lock:
                if not self._waiting or len(self._wanted) >= self._threads:
                    return
                future, work = self._waiting.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                self._wanted.add(future)
                self._ready.append((future, work))
            del work
            try:
                self._loading.submit(self._work)
            except RuntimeError:  # it has stopped, or the system has no thread
                with self._lock:
                    future, _ = self._ready.pop()
                self._leave(future)
                future.set_exception(ResourceExhausted("the server has no thread for a load"))

    def _work(self) -> None:
        """Does what is ready. It keeps no reference to it, so that the task's network is free when
        its future is done."""
        with self._lock:
            future, work = self._ready.popleft()
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            del work
            self._leave(future)
            future.set_exception(error)
        else:
            del work
            self._leave(future)
            future.set_result(result)
        del future
        self._begin()

    def _leave_place(self, future: Future[T]) -> None:
        """Lets another task begin although an unwanted one has not ended."""
        with self._lock:
            if future not in self._wanted or len(self._unwanted) >= _SPARE:
                return
            self._wanted.discard(future)
            self._unwanted.add(future)
        self._begin()

    def _leave(self, future: Future[T]) -> None:
        with self._lock:
            self._wanted.discard(future)
            self._unwanted.discard(future)

    def _ended(self, future: Future[T]) -> None:
        with self._lock:
            del self._tokens[future]


def _heeding(token: CancelToken, task: Callable[[], T]) -> T:
    with interruptible(token):
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
            failed = next((each for each in futures if each.exception() is not None), futures[0])
            pass_on(result, failed)

    for each in futures:
        each.add_done_callback(one_ended)
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
