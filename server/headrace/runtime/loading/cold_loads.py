"""The loads of networks that are known and not loaded, which requests wait for.

All requests to one network wait for one load. At most a few such loads run at a time, so a burst
over many networks does not load and evict them all at once. They run on the threads of all loads,
where an identity without any does not wait for long.

A pipeline's load keeps the networks of its steps in memory until it has ended. So one pipeline is
loaded at a time, with those among its steps: two could each keep the room that the other one needs.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias

from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    NotLoaded,
    ResourceExhausted,
    ShuttingDown,
    StillLoading,
    chain,
)
from headrace.runtime.loading.entry import NetworkEntry, plain_name
from headrace.runtime.pipelines.description import DEVICE as PIPELINE

_log = logging.getLogger(__name__)

_Place: TypeAlias = tuple[str, str]
"""The full name and the version of a network."""

_AT_ONCE: Final = 2  # loads
_SPARE: Final = 6
"""How many more of them run of identities that have none running."""
_MOST_WAITERS: Final = 1024
"""How many requests wait, with those that had too little time and whose loads go on. An identity
has at most half of that."""
_MOST_NEEDED: Final = 32
"""How many networks the load of a pipeline finds missing, one after the other. Also how many
pipelines wait for each other."""
_UNKNOWN_SECONDS: Final = 1.0
"""When to try again if no load has shown yet how long one takes."""


class ColdNetwork(NamedTuple):
    """A network that is not loaded, and what loads it."""

    entry: NetworkEntry
    loads: ColdLoads


class LoadWaiter:
    """A request that waits for a load.

    Attributes:
        error: why the load failed, once `told` was called; None if the network is loaded. Others
            who waited have the same one.
        trace: the traceback that it has of the load.
    """

    def __init__(
        self, wanted: WantedNetwork, told: Callable[[LoadWaiter], object], who: str, priority: int
    ) -> None:
        self.wanted = wanted
        self.told = told
        self.who = who
        self.priority = priority
        self.error: BaseException | None = None
        self.trace: TracebackType | None = None


@dataclass(eq=False, slots=True)
class WantedNetwork:
    """A network that requests wait for.

    Attributes:
        who: the identity that it is loaded for; before that, the one that asked first.
        order: when it was asked for, as a number that grows.
        asked: whether a request wants it, or wanted it. Otherwise nobody waits for its load.
        kept: whether it is loaded even if nobody waits for it any more.
        begun: when its load began, on the monotonic clock; None before that.
        lacks: whether its load waits for that of another network.
        waiters: the requests, as they came.
        needed: its waiters for other networks, which stay until it is loaded.
    """

    entry: NetworkEntry
    who: str
    order: int
    asked: bool = False
    kept: bool = False
    begun: float | None = None
    lacks: bool = False
    ended: bool = False
    waiters: dict[LoadWaiter, None] = field(default_factory=dict)
    needed: list[LoadWaiter] = field(default_factory=list)

    @property
    def place(self) -> _Place:
        return self.entry.key[:2]

    @property
    def priority(self) -> int:
        """That of the most urgent request."""
        return max((waiter.priority for waiter in self.waiters), default=0)

    def for_whom(self, running: Mapping[str, int]) -> str:
        """The identity that waits for it and has the fewest loads running."""
        if len(self.waiters) < 2:  # as usual: a queue asks it often
            return next(iter(self.waiters)).who if self.waiters else self.who
        return min((waiter.who for waiter in self.waiters), key=lambda who: running.get(who, 0))


def next_load(waiting: Iterable[WantedNetwork], running: Mapping[str, int]) -> WantedNetwork:
    """The network to load next: of those that requests want, if there are any, and of the identity
    that has the fewest loads running, the one with the most urgent request, and of these the first.

    Args:
        running: the loads under way, by identity.
    """

    def key(each: WantedNetwork) -> tuple[bool, int, int, int]:
        return not each.asked, running.get(each.for_whom(running), 0), -each.priority, each.order

    return min(waiting, key=key)


class ColdLoads:
    """Thread-safe: `_lock` guards all that follows it, and no lock is taken under it. Loads begin
    on a thread of their own, because that may wait for the disk. Waiters are told on any thread,
    without the lock, the most urgent first.

    Attributes:
        asked: called with the name of a network that a request wants.
        left: called when a request waits no more.
        ended: called with the name of a network whose load has ended.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="headrace-cold")
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._wanted: dict[_Place, WantedNetwork] = {}  # those whose load has not ended
        self._waiters: Counter[str] = Counter()  # by identity
        self._awaited: Counter[_Place] = Counter()
        self._mean_seconds = 0.0
        self._stopped = False
        self.asked: Callable[[str], object] = lambda _: None
        self.left: Callable[[], object] = lambda: None
        self.ended: Callable[[str], object] = lambda _: None

    def wait(
        self,
        entry: NetworkEntry,
        told: Callable[[LoadWaiter], object],
        *,
        who: str = "",
        priority: int = 0,
        seconds: float = math.inf,
        needed_by: WantedNetwork | None = None,
    ) -> LoadWaiter:
        """Has a network loaded. The network stays until the waiter leaves, which it has to do.

        Args:
            entry: the cold one.
            told: called once when the load has ended, on any thread.
            who: the identity that asks.
            seconds: for how long the request can wait.
            needed_by: a pipeline that waits for it as one of its steps.

        Raises:
            ResourceExhausted: too many requests wait.
            StillLoading: the load takes longer than `seconds`. It goes on.
            Unavailable: the server is shutting down.
        """
        self.asked(entry.key.name)
        with self._lock:
            if self._stopped:
                raise ShuttingDown()
            place: _Place = entry.key[:2]
            late = Counter(  # the loads of requests that had less time, and have left
                each.who for each in self._wanted.values() if each.asked and not each.waiters
            )
            free = _MOST_WAITERS - self._waiters.total() - late.total()
            if free <= 0 or (who and self._waiters[who] + late[who] > free):
                error = ResourceExhausted(
                    "too many requests wait for networks that are not loaded; try again later"
                )
                error.retry_delay_seconds = self.retry_seconds
                raise error
            wanted = self._want(entry)
            if not wanted.asked:
                wanted.asked, wanted.who, wanted.order = True, who, next(self._order)
            estimate = self._estimate(wanted, who)
            is_late = estimate is not None and estimate > seconds
            waiter = LoadWaiter(wanted, told, who, priority)
            if is_late:
                wanted.kept = True
            else:
                wanted.waiters[waiter] = None
                self._waiters[who] += 1
                self._awaited[place] += 1
                if needed_by is not None and not needed_by.ended:  # its end leaves them
                    needed_by.needed.append(waiter)
        self._begin()
        if is_late:
            assert estimate is not None
            name = plain_name(entry.key.name)
            still = StillLoading(
                f"network {name!r} is being loaded, which takes about {estimate:.2g} s, and the "
                "request has less time; try again then"
            )
            still.retry_delay_seconds = estimate
            raise still
        return waiter

    def load(self, entry: NetworkEntry) -> None:
        """Has a network loaded for which nobody waits. Those that requests want go first.

        Raises:
            Unavailable: the server is shutting down.
        """
        with self._lock:
            if self._stopped:
                raise ShuttingDown()
            self._want(entry).kept = True
        self._begin()

    @property
    def retry_seconds(self) -> float:
        """How long a load takes, as far as earlier loads tell."""
        return self._mean_seconds or _UNKNOWN_SECONDS

    def leave(self, waiter: LoadWaiter) -> None:
        """Ends a wait, before or after the load's end."""
        wanted = waiter.wanted
        with self._lock:
            wanted.waiters.pop(waiter, None)
            self._waiters[waiter.who] -= 1
            self._awaited[wanted.place] -= 1
            if not self._waiters[waiter.who]:
                del self._waiters[waiter.who]
            if not self._awaited[wanted.place]:
                del self._awaited[wanted.place]
            idle = wanted.begun is None and not wanted.ended and not wanted.lacks
            if idle and not wanted.waiters and not wanted.kept:
                del self._wanted[wanted.place]
                wanted.ended = True
        self.left()

    def awaited(self) -> Collection[_Place]:
        """The networks that requests wait for, or have waited for and take now."""
        with self._lock:
            return set(self._awaited)

    def kept_together(self) -> Collection[_Place]:
        """The pipeline that is being loaded, and the networks of its steps that are kept for it."""
        with self._lock:
            return self._together()

    def stop(self) -> None:
        """Begins no load any more, and tells all who wait."""
        with self._lock:
            self._stopped = True
            left = [each for each in self._wanted.values() if each.begun is None]
        for wanted in left:
            self._end(wanted, ShuttingDown())
        self._threads.shutdown()

    # -- inside --

    def _want(self, entry: NetworkEntry) -> WantedNetwork:
        """The network, wanted by nobody yet if it is new. The caller holds the lock."""
        place: _Place = entry.key[:2]
        wanted = self._wanted.get(place)
        again = entry.tenancy.again
        # The load of an earlier network of the name may hang, although that was unloaded.
        if wanted is None or (wanted.begun and wanted.entry.tenancy.again is not again):
            wanted = self._wanted[place] = WantedNetwork(entry, "", next(self._order))
        return wanted

    def _together(self) -> Collection[_Place]:
        pipelines = [each for each in self._wanted.values() if each.needed]
        steps = {waiter.wanted.place for each in pipelines for waiter in each.needed}
        return steps.union(each.place for each in pipelines)

    def _estimate(self, wanted: WantedNetwork, who: str) -> float | None:
        """The seconds until the network is loaded for an identity, as far as earlier loads tell.
        Those that others ask for do not hold it up. The caller holds the lock."""
        own = wanted.entry.load_seconds or self._mean_seconds
        if not own:
            return None
        if wanted.begun is not None:
            return max(own - (time.monotonic() - wanted.begun), 0.0)
        ahead = sum(
            each.order < wanted.order and each.who == who and (each.asked or each.begun is not None)
            for each in self._wanted.values()
        )
        return own + ahead // _AT_ONCE * self._mean_seconds

    def _begin(self) -> None:
        while True:
            with self._lock:
                if self._stopped:
                    return
                there = self._wanted.values()
                running = [each for each in there if each.begun is not None]
                waiting = self._waiting()
                of = Counter(each.who for each in running)
                if len(running) >= _AT_ONCE:  # which may wait for room, and for long
                    kept = self._together()
                    waiting = [
                        each
                        for each in waiting
                        if (each.asked and not of[each.for_whom(of)]) or each.place in kept
                    ]
                if not waiting or len(running) >= _AT_ONCE + _SPARE:
                    return
                wanted = next_load(waiting, of)
                wanted.who = wanted.for_whom(of)
                wanted.begun = time.monotonic()
            try:
                self._threads.submit(self._load, wanted)
            except RuntimeError:  # stopped meanwhile
                self._end(wanted, ShuttingDown())

    def _waiting(self) -> list[WantedNetwork]:
        """The networks that wait for no other one, and for no pipeline. While one keeps networks
        and waits for another one, its identity's loads would take all places, and wait for the room
        of those that it keeps. The caller holds the lock."""
        there = self._wanted.values()
        waiting = [each for each in there if each.begun is None and not each.lacks]
        pipelines = [each for each in there if each.entry.device == PIPELINE]
        for one in pipelines:
            if one.begun is not None or one.lacks or one.needed:
                waiting = [
                    each
                    for each in waiting
                    if not (each in pipelines or (each.who == one.who and one.begun is None))
                    or _needs(one, each)
                ]
        return waiting

    def _load(self, wanted: WantedNetwork) -> None:
        again = wanted.entry.tenancy.again
        assert again is not None
        try:
            load = again(wanted.entry, wanted.who)
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            self._end(wanted, error)
            return
        load.add_done_callback(partial(self._ended, wanted))

    def _ended(self, wanted: WantedNetwork, load: Future[NetworkEntry]) -> None:
        error = load.exception()
        missing = next((each for each in chain(error) if isinstance(each, NotLoaded)), None)
        with self._lock:
            goes_on = self._wanted.get(wanted.place) is wanted and len(wanted.needed) < _MOST_NEEDED
        if missing is None or not goes_on:
            self._end(wanted, error)
        else:
            assert isinstance(missing.cold, ColdNetwork)
            self._load_first(wanted, missing.cold.entry)

    def _load_first(self, wanted: WantedNetwork, missing: NetworkEntry) -> None:
        """Loads a network that another one needs, a pipeline's step, and then that one again."""
        with self._lock:
            wanted.begun, wanted.lacks = None, True
            first = self._wanted.get(missing.key[:2])
            circle = first is not None and _needs(first, wanted)
            deep = sum(each.lacks for each in self._wanted.values()) > _MOST_NEEDED
        try:
            if deep:
                raise FailedPrecondition(
                    f"more than {_MOST_NEEDED} pipelines that are not loaded run each other; ask "
                    "for the inner ones first"
                )
            if circle:
                name = plain_name(wanted.entry.key.name)
                raise FailedPrecondition(f"network {name!r} would run itself")
            told = partial(self._is_there, wanted)
            waiter = self.wait(missing, told, who=wanted.who, needed_by=wanted)
        except HeadraceError as error:
            self._end(wanted, error)
            return
        with self._lock:
            leaves = waiter not in wanted.needed
        if leaves:  # it has ended meanwhile
            self.leave(waiter)

    def _is_there(self, wanted: WantedNetwork, waiter: LoadWaiter) -> None:
        """Goes on with a network that lacked another one, whose load has ended."""
        if waiter.error is not None:
            self._end(wanted, waiter.error)
            return
        with self._lock:
            wanted.lacks = False
        self._begin()

    def _end(self, wanted: WantedNetwork, error: BaseException | None) -> None:
        with self._lock:
            if wanted.ended:
                return
            wanted.ended = True
            if self._wanted.get(wanted.place) is wanted:
                del self._wanted[wanted.place]
            if error is None and wanted.begun is not None:
                seconds = time.monotonic() - wanted.begun
                self._mean_seconds += (seconds - self._mean_seconds) / (
                    4 if self._mean_seconds else 1
                )
            waiters = sorted(wanted.waiters, key=lambda waiter: -waiter.priority)
            needed = [*wanted.needed]
            untold = error is not None and not wanted.asked and not self._stopped
        if untold:
            _log.error("network %s was not loaded: %s", plain_name(wanted.entry.key.name), error)
        self.ended(wanted.entry.key.name)
        trace = None if error is None else error.__traceback__
        for waiter in waiters:
            waiter.error, waiter.trace = error, trace
            waiter.told(waiter)
        for each in needed:
            self.leave(each)
        self._begin()


def _needs(first: WantedNetwork, wanted: WantedNetwork) -> bool:
    """Whether the load of `first` waits for that of `wanted`, at any depth."""
    return first is wanted or any(_needs(each.wanted, wanted) for each in first.needed)
