"""Unloads networks that nobody uses, if their load said so.

A program that needs a network for a while may end, or lose its connection, before it can unload it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from headrace.runtime.config.key import Key
from headrace.runtime.config.prefixes import split_off
from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.timer import Timer
from headrace.runtime.loading.entry import NetworkEntry, NetworkState
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.transform.options import LoadRequest

UNLOAD_AFTER_IDLE: Final = Key(
    "UNLOAD_AFTER_IDLE",
    float,
    0.0,
    "After how long without a request the server unloads the network. 0: never.",
    unit="seconds",
    minimum=0,
    maximum=1_000_000,
    scope="load",
)
SCHEMA: Final = ConfigSchema(UNLOAD_AFTER_IDLE)


def split(config: Mapping[str, str], *, stays: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The configuration of a load without the key, and what to tell the caller about it.

    Args:
        stays: why the network is not unloaded; empty if it may be.

    Raises:
        InvalidArgument: the value is bad, or the key has a device's prefix.
    """
    _, rest = split_off(config, SCHEMA)
    told = idle_seconds(config) and stays
    return rest, (f"{UNLOAD_AFTER_IDLE.name} has no effect: {stays}",) if told else ()


def idle_seconds(config: Mapping[str, str]) -> float:
    """After how long without a request a load's configuration has its network unloaded; 0 for
    never.

    Raises:
        InvalidArgument: the value is bad.
    """
    text = config.get(UNLOAD_AFTER_IDLE.name)
    return (
        0.0 if text is None else SCHEMA.resolve({UNLOAD_AFTER_IDLE.name: text})[UNLOAD_AFTER_IDLE]
    )


class IdleNetworks:
    """The networks that are unloaded when nobody uses them. Thread-safe: `_lock` guards what is
    watched, and the alarm. The registry's lock and the timer's are taken under it.

    Args:
        unload: called under the lock with a request whose network nobody uses. It only begins.
        clock: seconds of the monotonic clock.

    Attributes:
        unloaded: called with the name of a network that was unloaded.
    """

    def __init__(
        self,
        timer: Timer,
        networks: NetworkRegistry,
        unload: Callable[[LoadRequest], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.unloaded: Callable[[str], object] = lambda _: None
        self._networks = networks
        self._unload = unload
        self._clock = clock
        self._lock = threading.Lock()
        self._alarm = Alarm(timer, self._on_alarm)
        self._watched: list[tuple[LoadRequest, float]] = []

    def watch(self, request: LoadRequest, seconds: float) -> None:
        """Watches the network of a load that has begun, also if it leaves memory and comes back.

        Args:
            seconds: after how long without a request it is unloaded; 0 for never.
        """
        if not seconds:
            return
        with self._lock:
            there = [each for each in self._watched if self._entry(each[0]) is not None]
            self._watched = [*there, (request, seconds)]
            self._alarm.set(self._clock() + seconds)

    def close(self) -> None:
        """Unloads nothing any more."""
        with self._lock:
            self._watched.clear()
            self._alarm.close()

    def _on_alarm(self) -> None:
        with self._lock:
            self._alarm.rang()
            self._watched = [each for each in self._watched if self._stays(*each)]

    def _stays(self, request: LoadRequest, seconds: float) -> bool:
        """Whether to look at the network again. The caller holds the lock."""
        entry, now = self._entry(request), self._clock()
        if entry is None:
            return False
        due = (now if _is_used(entry) else entry.last_used) + seconds
        if due <= now:
            self._unload(request)
            return False
        self._alarm.set(due)
        return True

    def _entry(self, request: LoadRequest) -> NetworkEntry | None:
        """The network that the request has loaded, or is loading; None if it is gone."""
        networks, name = self._networks, request.name
        there = [*networks.loads(name), *networks.versions(name)]  # a load may end in between
        return next((each for each in there if is_of(each, request)), None)


def is_of(entry: NetworkEntry, request: LoadRequest) -> bool:
    """Whether the entry is of a network that this request has loaded, and no later one. SetConfig
    replaces the request, and not its options."""
    return entry.record is not None and entry.record.request.options is request.options


def _is_used(entry: NetworkEntry) -> bool:
    loads = entry.state is NetworkState.LOADING
    executable = entry.executable
    holds = executable is not None and bool(executable.sequence_owners)
    return loads or entry.references > 0 or holds
