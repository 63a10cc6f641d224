"""Started requests of the synchronous client for several servers."""

from __future__ import annotations

import threading
from concurrent import futures
from functools import partial
from typing import Any

from headrace.client import errors
from headrace.client.balancing.fleet import Server
from headrace.client.channel.channel import CallFailed, Reply
from headrace.client.errors import Error
from headrace.client.plans.plan import Budget
from headrace.client.request import OutcomeFuture


class BalancedFuture(OutcomeFuture):
    """A request in flight, which is sent again if it fails on one server. Thread-safe.

    One attempt follows another: the callback that ends one begins the next. `_lock` guards whether
    the request is cancelled and whether it is settled.
    """

    def __init__(
        self,
        client: Any,
        method: str,
        request: Any,
        timeout: float | None,
        tried: tuple[Server, ...] = (),
    ) -> None:
        self._client = client
        self._method = method
        self._request = request
        self._budget = Budget(float("inf") if timeout is None else timeout)
        self._attempts = client.attempts(request, tried)
        self._lock = threading.Lock()
        self._cancelled = False
        self._settled = False
        self._call: Any = None
        self._outcome: futures.Future[Reply] = futures.Future()
        self.server: Server | None = None
        self._begin()

    def cancel(self) -> bool:
        with self._lock:
            if self._settled:
                return False
            self._cancelled = True
        call = self._call
        if call is not None:  # otherwise, and between two attempts, `_begin` looks
            call.cancel()
        return True

    def _begin(self) -> None:
        try:
            left = self._budget.left_seconds
            if not left:
                raise errors.late(self._client.endpoint)
            server = self._attempts.server()
        except Error as error:
            self._settle(error)
            return
        self.server = server
        route = server.route
        try:
            timeout = None if left == float("inf") else left
            call = route.calls.start(self._method, self._request, timeout, once=True)
        except Error as error:
            if server.gave_up(route):  # it was closed before the call began
                self._failed(server, errors.cancelled(), given_up=True)
            else:
                self._attempts.released(server)
                self._settle(error)
            return
        self._call = call
        if self._cancelled:
            call.cancel()
        call.add_done_callback(partial(self._answered, server, route))

    def _begin_again(self) -> None:
        """Begins the next attempt after a pause, in which the request may have been cancelled."""
        if self._cancelled:
            self._settle(errors.cancelled())
        else:
            self._begin()

    def _answered(self, server: Server, route: Any, call: Any) -> None:
        try:
            reply = call.result()
        except CallFailed as failure:
            given_up = server.gave_up(route)
            self._failed(server, errors.from_call(failure, route.endpoint), given_up=given_up)
        else:
            self._attempts.answered(server, reply.message)
            self._settle(reply)

    def _failed(self, server: Server, error: Error, *, given_up: bool) -> None:
        if self._cancelled or (given_up and self._client.group.closed):
            self._attempts.released(server)
            self._settle(errors.cancelled())
            return
        pause = self._attempts.failed(server, error, given_up=given_up)
        if pause is None or pause >= self._budget.left_seconds:
            self._settle(error)
        elif pause:
            timer = threading.Timer(pause, self._begin_again)
            timer.daemon = True
            timer.start()
        else:
            self._begin()

    def _settle(self, outcome: Reply | Error) -> None:
        """Ends the request, as cancelled if `cancel` has said so."""
        with self._lock:
            self._settled = True
            if self._cancelled:
                outcome = errors.cancelled()
        if isinstance(outcome, Error):
            self._outcome.set_exception(outcome)
        else:
            self._outcome.set_result(outcome)
