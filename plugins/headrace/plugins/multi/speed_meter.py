"""Runs a network on several devices in turns, in moments in which no request is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, NamedTuple

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.services import Services
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.values import Value
from headrace.runtime.virtual import timing
from headrace.runtime.virtual.networks import optimal_requests

_LAST: Final = -10
"""The priority of the runs: every request goes first."""
_SETTLE_SECONDS: Final = 20.0
_RUN_SECONDS: Final = 30.0
"""How long a device may run the network until it is settled; and in all turns."""
_FULL_SECONDS: Final = 0.05
"""What one turn of short runs takes with all streams full."""
_SPENT_SECONDS: Final = 1.5
"""The time for the turns of all devices, once alone and once with full streams."""
_FEWEST, _MOST = 2, 24
_FEWEST_FULL, _MOST_FULL = 2, 16
"""Requests for each stream in a turn."""
_QUIET_SECONDS: Final = 5.0
"""How long to wait for the end of requests."""
_LOOK_SECONDS: Final = 0.02
_TRIES: Final = 3


class NotIdle(Exception):
    """There are requests."""


class SettledRun(NamedTuple):
    """A network that its device tries nothing out for any more, and what a run takes there."""

    executable: ExecutableNetwork
    seconds: float


class SpeedFigures(NamedTuple):
    """What was measured on one device."""

    latency_seconds: float
    requests_per_second: float


class SpeedMeter:
    """The runs of one network. One thread calls it.

    Args:
        token: its cancel ends a run.
        ends: set when the token is cancelled.
    """

    def __init__(self, services: Services, token: CancelToken, ends: threading.Event) -> None:
        self._services = services
        self._token = token
        self._ends = ends

    def settle(self, executable: ExecutableNetwork, inputs: Mapping[str, Value]) -> SettledRun:
        """Runs the network until the device tries nothing out for it any more.

        Raises:
            NotIdle: requests do not end.
            FailedPrecondition: the device does not settle.
            Whatever a run raises, or Cancelled after some time.
        """
        with self.within(_SETTLE_SECONDS) as token:
            took = timing.settle(
                executable,
                inputs,
                token,
                priority=_LAST,
                before=self._quiet,
                pause=self._ends.wait,
            )
        return SettledRun(executable, took)

    def measure(
        self, runs: Sequence[SettledRun], inputs: Mapping[str, Value]
    ) -> list[SpeedFigures]:
        """What requests take on each device. Raises as `settle`."""
        counts = [_full(each) for each in runs]
        with self.within(_RUN_SECONDS * len(runs)) as token:
            alone = timing.in_turns(
                [partial(self._alone, each.executable, inputs, token) for each in runs],
                fewest=_FEWEST,
                most=_MOST,
                left_seconds=_SPENT_SECONDS,
            )
            together = timing.in_turns(
                [
                    partial(self._together, each.executable, [inputs] * count, token)
                    for each, count in zip(runs, counts, strict=True)
                ],
                fewest=_FEWEST,
                most=_MOST,
                left_seconds=_SPENT_SECONDS,
            )
        return [
            SpeedFigures(min(latency), count / min(seconds))
            for latency, count, seconds in zip(alone, counts, together, strict=True)
        ]

    def within(self, seconds: float) -> AbstractContextManager[CancelToken]:
        """A token that is cancelled when the time is over or the network is unloaded."""
        return timing.within(seconds, self._token, self._services.timer)

    def _alone(
        self, executable: ExecutableNetwork, inputs: Mapping[str, Value], token: CancelToken
    ) -> float:
        return self._undisturbed(lambda: timing.quickest(executable, inputs, token, priority=_LAST))

    def _together(
        self,
        executable: ExecutableNetwork,
        requests: Sequence[Mapping[str, Value]],
        token: CancelToken,
    ) -> float:
        return self._undisturbed(
            lambda: timing.seconds(executable, requests, token, priority=_LAST)
        )

    def _undisturbed(self, run: Callable[[], float]) -> float:
        """What a run took during which no request came."""
        for _ in range(_TRIES):
            before = self._quiet()
            took = run()
            if self._services.counters.requests()[0] == before:
                return took
        raise NotIdle

    def _quiet(self) -> int:
        """Waits until no request is under way. Returns how many there were so far."""
        until = time.monotonic() + _QUIET_SECONDS
        while True:
            if self._token.error is not None:
                raise self._token.error
            accepted, ended = self._services.counters.requests()
            if accepted == ended:
                return accepted
            if time.monotonic() >= until:
                raise NotIdle
            self._ends.wait(_LOOK_SECONDS)


def _full(run: SettledRun) -> int:
    """How many requests fill all streams for a while."""
    each = min(max(int(_FULL_SECONDS / max(run.seconds, 1e-9)), _FEWEST_FULL), _MOST_FULL)
    return optimal_requests(run.executable) * each
