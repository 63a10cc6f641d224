"""The thread of a synchronous client with several servers: health, hedges, and names in DNS."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import Any

import grpc

from headrace.client.balancing.fleet import TICK_SECONDS, Server
from headrace.client.balancing.health import answer_of
from headrace.client.balancing.sync.hedge import HedgedFuture, Hedges
from headrace.client.channel.channel import Call, CallFailed
from headrace.client.errors import Error
from headrace.client.exits import wait_for
from headrace.client.forks import tell_of_forks


class Watch:
    """Ticks while the client has work, and sleeps otherwise. Begins with the first request.

    Args:
        client: a weak proxy, so that a client that nobody has any more can end.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = threading.Lock()  # guards the beginning of the thread
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._hedges = Hedges()
        self._silent: deque[Server] = deque()  # whose requests are to be given up
        self._stopped = False
        tell_of_forks(self)

    def inherit(self) -> None:
        """Begins anew in a process that was forked."""
        self._lock = threading.Lock()
        self._thread = None
        self._woken = threading.Event()
        self._hedges = Hedges()
        self._silent.clear()

    def wake(self) -> None:
        """Notes that the client has work."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._stopped:
                    name = "headrace-balancing"
                    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                    self._thread.start()
        self._woken.set()

    def hedge(self, request: HedgedFuture, at: float) -> None:
        """Sends a request to a second server at this time, if it has no answer by then."""
        if self._hedges.add(request, at):
            self.wake()

    def stop(self) -> None:
        self._stopped = True
        self._woken.set()

    def wait(self) -> None:
        """Waits until the thread has ended after `stop`, so that it begins no more calls."""
        with self._lock:
            thread = self._thread
        wait_for(thread)

    def _run(self) -> None:
        resolved_at = time.monotonic()
        try:
            while True:
                self._woken.clear()
                if self._stopped:  # asked after the clear, which may have taken `stop`'s call away
                    return
                self._tick()
                now = time.monotonic()
                if self._must_resolve(now - resolved_at):
                    resolved_at = now
                    # A look-up may take many seconds, and the servers' health does not wait.
                    threading.Thread(target=self._resolve, daemon=True).start()
                for request in self._hedges.due(now):
                    request.hedge()
                self._woken.wait(self._pause_seconds())
        except ReferenceError:  # nobody has the client any more
            return

    def _pause_seconds(self) -> float | None:
        """How long to sleep, if nobody wakes it; None for ever."""
        tick = None if self._client.fleet.may_sleep() else TICK_SECONDS
        at = self._hedges.next_at()
        if at is None:
            return tick
        left = max(at - time.monotonic(), 0.0)
        return left if tick is None else min(left, tick)

    def _must_resolve(self, age: float) -> bool:
        group = self._client.group
        return group.name is not None and bool(group.fleet.must_resolve(age))

    def _resolve(self) -> None:
        try:
            self._client.resolve()
        except ReferenceError:
            return

    def _tick(self) -> None:
        for route in self._client.group.forget_retired():
            route.close()
        while self._silent:
            self._client.give_up(self._silent.popleft())
        for server in self._client.fleet.due():
            try:
                call = server.route.probe(server.health.probe_seconds)
            except Error:  # closed meanwhile
                self._client.fleet.unasked(server)
                continue
            call.add_done_callback(partial(self._probed, server))

    def _probed(self, server: Server, call: Call) -> None:
        """Takes an answer, on the thread that has read it."""
        try:
            failure = call.exception()
            if isinstance(failure, CallFailed):
                answer = answer_of(failure.code, None)
            else:
                answer = answer_of(grpc.StatusCode.OK, call.result().message)
            if self._client.fleet.probed(server, answer):
                # Closing a connection waits for this thread, so another one does it.
                self._silent.append(server)
                self._woken.set()
        except ReferenceError:
            return
