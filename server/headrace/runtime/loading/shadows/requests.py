"""The requests that a network gives to its shadow."""

from __future__ import annotations

import itertools
import logging
import threading
from concurrent.futures import Future
from functools import partial
from typing import Final

from headrace.runtime.errors import (
    AlreadyExists,
    Cancelled,
    HeadraceError,
    NotFound,
    Unavailable,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.loading.entry import NetworkEntry, NetworkState, owner_of
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.loading.shadows.comparison import (
    DROPPED,
    ShadowOutcome,
    ShadowSample,
    compare,
    failure,
    precision_of,
)
from headrace.runtime.loading.shadows.device_copy import DeviceCopy
from headrace.runtime.loading.shadows.queue import SpareQueue
from headrace.runtime.loading.shadows.shadow import OUTCOMES, WHOLE, Shadow
from headrace.runtime.metrics.families import SHADOW_DIFFERENCE, SHADOW_REQUESTS
from headrace.runtime.metrics.series import SeriesTable

_log = logging.getLogger(__name__)

_GOLDEN: Final = 0x9E3779B9  # 2 ** 32 divided by the golden ratio


def is_chosen(turn: int, percent: int) -> bool:
    """Whether the shadow gets the request of this number, from 1 on.

    The chosen ones lie evenly, but not at one distance: callers who ask the same few inputs in turn
    would otherwise have one of them compared again and again. (Fibonacci hashing, as Knuth has it
    in "The Art of Computer Programming", volume 3, section 6.4.)
    """
    return turn * _GOLDEN % (1 << 32) * WHOLE < percent << 32


class ShadowRequests:
    """Chooses requests of a network, and has them compared. Thread-safe.

    Args:
        copy: the network on the shadow's device; None if the shadow is a version.

    Attributes:
        name: the network's full name.
        shadow: where the requests go.
    """

    def __init__(
        self,
        name: str,
        shadow: Shadow,
        networks: NetworkRegistry,
        queue: SpareQueue,
        series: SeriesTable,
        copy: DeviceCopy | None,
    ) -> None:
        self.name = name
        self.shadow = shadow
        self._networks = networks
        self._queue = queue
        self._series = series
        self._copy = copy
        for outcome in OUTCOMES:  # so that Prometheus sees the first one of each
            series.get(SHADOW_REQUESTS, name, outcome)
        self._turns = itertools.count(1)
        self._ended = threading.Event()
        self._token = CancelToken()
        self._idle = threading.Event()
        self._idle.set()
        self._told: set[str] = set()

    def begin(self) -> Future[NetworkEntry] | None:
        """Loads the network on the shadow's device, if it is there. Raises as
        `Core.load_network`."""
        if self._copy is None:
            return None
        try:
            entry = self._networks.find(self.name)
        except NotFound:
            return None
        if entry.state is not NetworkState.READY:
            return None  # its first request that is chosen loads it
        return self._load(self._copy, entry)

    def stop(self) -> None:
        """Ends what runs and what waits."""
        self._ended.set()
        self._token.cancel(Cancelled("the shadow has ended"))

    def end(self) -> None:
        """Ends the shadow for good, and unloads its network."""
        self.stop()
        if self._copy is not None:
            self._copy.end()

    # -- on the threads that submit and end requests: short, and never waiting --

    def __call__(self, entry: NetworkEntry, job: Job) -> None:
        """Looks at a request that is about to be submitted to a version of the network."""
        if job.ticket is not None or entry.key.version == self.shadow.version:
            return  # a step of a pipeline; a request to the shadow itself
        source = None if self._copy is None else self._copy.source
        if source is not None and source is not entry and source.state is NetworkState.READY:
            return  # the network on the device was loaded from another version
        if not is_chosen(next(self._turns), self.shadow.percent):
            return
        assert entry.executable is not None
        # Memory that a client may change would be other inputs by then.
        unfit = job.sequence is not None or job.room is not None
        if unfit or entry.executable.sources() is None:
            self._count("dropped")
            return
        job.observe(partial(self._answered, entry, precision_of(entry.executable)))

    def _answered(self, entry: NetworkEntry, precision: str, job: Job) -> None:
        if job.outcome is not Outcome.COMPLETED:
            return
        sample = ShadowSample(
            entry,
            dict(job.inputs),
            job.output_names,
            dict(job.outputs),
            precision,
            job.owner,
        )
        job.follow(lambda _: self._keep(sample))  # after the caller's reply

    def _keep(self, sample: ShadowSample) -> None:
        held = [*sample.inputs.values(), *sample.outputs.values()]
        whose = owner_of(self.name) or self.name
        if not self._queue.put(self._ended, partial(self._take, sample), held, whose):
            self._count("dropped")

    # -- on the thread of the shadows --

    def _take(self, sample: ShadowSample) -> None:
        found = self._compared(sample)
        if found.relative is not None:
            self._series.get(SHADOW_DIFFERENCE, self.name).add(found.relative)
        self._tell(found)
        self._count(found.outcome)

    def _compared(self, sample: ShadowSample) -> ShadowOutcome:
        copy = self._copy
        if not self._idle.is_set():
            return DROPPED
        if copy is not None and copy.source is not sample.entry:
            return self._load_again(copy, sample.entry)
        name, version = (self.name, self.shadow.version) if copy is None else (copy.name, "")
        try:
            entry = self._networks.acquire(name, version)
        except Unavailable:  # it is being loaded, or others need its memory
            return DROPPED
        except HeadraceError as error:
            return failure(error)
        give_back = partial(self._networks.release, entry)
        return compare(sample, entry, self._token, self._idle, give_back)

    def _load_again(self, copy: DeviceCopy, entry: NetworkEntry) -> ShadowOutcome:
        """After another network has taken the place of the one that is on the device."""
        try:
            self._load(copy, entry)
        except HeadraceError as error:
            # While an earlier load is under way, the next request asks again.
            if not (isinstance(error, AlreadyExists) and copy.is_loading):
                copy.source = entry
                self._tell(failure(error))
        return DROPPED

    def _load(self, copy: DeviceCopy, entry: NetworkEntry) -> Future[NetworkEntry]:
        load = copy.load(entry)
        load.add_done_callback(self._loaded)
        return load

    def _loaded(self, load: Future[NetworkEntry]) -> None:
        if self._ended.is_set() or load.cancelled():
            return
        if (error := load.exception()) is not None:
            self._tell(failure(error))

    def _tell(self, found: ShadowOutcome) -> None:
        """Logs the first request of an outcome that needs a reason."""
        if found.why and found.outcome not in self._told:
            self._told.add(found.outcome)
            text = "network %s: the first request that %s on its shadow, %s: %s"
            _log.warning(text, self.name, found.outcome, self.shadow, found.why)

    def _count(self, outcome: str) -> None:
        self._series.get(SHADOW_REQUESTS, self.name, outcome).add(1)
