"""The threads that load, query and close networks. With them no request waits behind a load."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

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


class LoadExecutor:
    """Runs a bounded number of tasks on a few threads, and closes networks on a separate thread.

    Thread-safe: `_lock` guards the count, the tokens and the flag that it has stopped.
    """

    def __init__(self, threads: int = 2, capacity: int = 256) -> None:
        self._lock = threading.Lock()
        self._capacity = capacity
        self._pending = 0
        self._tokens: dict[Future[Any], CancelToken] = {}
        self._stopped = False
        self._loading = ThreadPoolExecutor(threads, thread_name_prefix="headrace-load")
        self._closing = ThreadPoolExecutor(1, thread_name_prefix="headrace-close")

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Runs a client's task, in the context of the caller. So the log knows its request.
        `give_up` and `stop_loading` end the task at its next layer.

        Raises:
            ResourceExhausted: too many tasks wait already.
            Unavailable: the executor has stopped.
            The future raises what the task raises. If that is not an ordinary exception, it raises
            Internal.
        """
        with self._lock:
            if self._stopped:
                raise ShuttingDown()
            if self._pending >= self._capacity:
                raise ResourceExhausted(
                    f"{self._pending} loads and queries are waiting, as many as the server takes; "
                    f"try again later"
                )
            self._pending += 1
            token = CancelToken()
            future = self._loading.submit(copy_context().run, _run, partial(_heeding, token, task))
            self._tokens[future] = token
        future.add_done_callback(self._ended)
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
            tokens = list(self._tokens.values())
        for token in tokens:
            token.cancel(Stopped("the server is shutting down; use another one"))
        self._loading.shutdown(cancel_futures=True)

    def stop(self) -> None:
        """Stops loading, and also waits for the networks that are being closed."""
        self.stop_loading()
        self._closing.shutdown()

    def _ended(self, future: Future[T]) -> None:
        with self._lock:
            self._pending -= 1
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
