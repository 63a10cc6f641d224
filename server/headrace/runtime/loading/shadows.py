"""Shadows: a share of a network's requests is also given to another version or device, after its
callers have their replies, and the answers are compared.

A shadow takes what is left over. One thread for all shadows has one request run at a time, in spare
time (`SpareTime`). A request is dropped if too many wait, or if half of the device's queue is full.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.standard_keys import INFERENCE_PRECISION_HINT
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    NotFound,
    QueueFull,
    Unavailable,
)
from headrace.runtime.execution.background import Background
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.loading.entry import (
    NetworkEntry,
    NetworkState,
    check_version,
    full_name,
    owner_of,
    plain_name,
)
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.metrics.families import SHADOW_DIFFERENCE, SHADOW_REQUESTS
from headrace.runtime.metrics.series import SeriesTable, Snapshot
from headrace.runtime.network.comparison import difference
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Value
from headrace.runtime.pipelines.description import DEVICE as PIPELINE
from headrace.runtime.sequences.memory import may_take
from headrace.runtime.system.asker import Asker
from headrace.runtime.transform.options import LoadRequest

_log = logging.getLogger(__name__)

WHOLE: Final = 100
PERCENT: Final = 5
"""The share of the requests if nobody says another."""

OUTCOMES: Final = ("equal", "close", "differs", "failed", "dropped")
"""What becomes of a request that is chosen."""

_MOST_WAITING: Final = 16
_MOST_BYTES: Final = 1 << 26
_SAMPLE_BYTES: Final = 1 << 16  # the least that a sample counts for
_MOST_PARTS: Final = 4096
_QUIET_SECONDS: Final = 0.02
_PAUSES: Final = 400
_LOOK_SECONDS: Final = 0.02
_RUN_SECONDS: Final = 10.0
_PRIORITY: Final = -10
_PRECISIONS: Final = ("f32", "f16", "bf16")  # the least precise one last


class Shadow(NamedTuple):
    """
    Attributes:
        version, device: what gets the requests too: a version of the network, or the network on
            this device. One of them is empty. Both are if there is no shadow.
        percent: of the requests.
    """

    version: str = ""
    device: str = ""
    percent: int = PERCENT

    def __str__(self) -> str:
        return f"version {self.version}" if self.version else self.device


def copy_name(name: str) -> str:
    """The full name of a network on its shadow's device."""
    return full_name(f"{plain_name(name)}.shadow", owner_of(name))


NO_SHADOW: Final = Shadow(percent=0)


def check_shadow(shadow: Shadow, field: str = "") -> Shadow:
    """Returns the shadow, or `NO_SHADOW` if its share is 0.

    Args:
        field: what the fields of the error stand in.

    Raises:
        InvalidArgument: it is none.
    """
    version, device, percent = shadow
    if not 0 <= percent <= WHOLE:
        message = f"percent is {percent}; a share is a whole number from 0 to {WHOLE}"
        raise InvalidArgument(message, field=f"{field}percent")
    if not percent:
        return NO_SHADOW
    if bool(version) == bool(device):
        message = "give a shadow a version or a device, one of them"
        raise InvalidArgument(message, field=f"{field}version")
    if version:
        check_version(version, f"{field}version")
        return shadow
    return shadow._replace(device=str(DeviceName.parse(device, field=f"{field}device")))


def check_network(entry: NetworkEntry, shadow: Shadow) -> None:
    """
    Raises:
        FailedPrecondition: the network's requests cannot be compared, or it cannot be loaded on the
            shadow's device.
    """
    name, executable = plain_name(entry.key.name), entry.executable
    if shadow.device and entry.record.request.device.type == PIPELINE:
        raise FailedPrecondition(
            f"{name!r} is a pipeline, which runs on the devices of its steps: shadow another "
            "version of it, or a network of its steps",
            field="device",
        )
    if executable is None:
        return
    if executable.states:
        raise FailedPrecondition(
            f"network {name!r} keeps states, so a sequence would have to run on its shadow as a "
            "whole: compare versions of it with a client",
            field="network",
        )
    if random := executable.random_layers():
        raise FailedPrecondition(
            f"network {name!r} computes with random numbers ({random[0]}), so the same inputs give "
            "other outputs the next time",
            field="network",
        )


def is_chosen(turn: int, percent: int) -> bool:
    """Whether the shadow gets the request of this number, from 1 on.

    The chosen ones lie evenly, but not at one distance: callers who ask the same few inputs in turn
    would otherwise have one of them compared again and again. (Fibonacci hashing, as Knuth has it
    in "The Art of Computer Programming", volume 3, section 6.4.)
    """
    return turn * _GOLDEN % (1 << 32) * WHOLE < percent << 32


_GOLDEN: Final = 0x9E3779B9  # 2 ** 32 divided by the golden ratio


class SpareTime:
    """Decides when shadows may run: while no request is in flight, and none has come or ended for
    `_QUIET_SECONDS`. On a server that is never so quiet they get one part in `_PAUSES` of the time.
    So they meet fewer requests than one in a hundred, and callers' 99th percentile stays.

    All times are on the monotonic clock. Belongs to the thread of the shadows.
    """

    def __init__(self) -> None:
        self._due = 0.0
        self._counts = 0, 0
        self._quiet_since = 0.0

    def is_here(self, now: float, accepted: int, ended: int) -> bool:
        """
        Args:
            accepted, ended: how many requests the server has accepted, and how many have ended.
        """
        if self._counts != (accepted, ended):
            self._counts, self._quiet_since = (accepted, ended), now
        quiet = accepted == ended and now - self._quiet_since >= _QUIET_SECONDS
        return quiet or now >= self._due

    def used(self, began: float, ended: float) -> None:
        """A shadow has run."""
        self._due = ended + _PAUSES * (ended - began)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A request with its answer.

    Attributes:
        entry: the network that has answered. The sample holds no reference to it.
        precision: in which that has computed.
        bytes: that the values hold.
    """

    entry: NetworkEntry
    inputs: Mapping[str, Value]
    output_names: tuple[str, ...]
    outputs: Mapping[str, Value]
    precision: str
    owner: str
    bytes: int


class _SampleMemory:
    """Counts the bytes of all samples that wait. Thread-safe; `_lock` guards the numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = _MOST_BYTES
        self._of: Counter[str] = Counter()

    def takes(self, size: int, whose: str) -> bool:
        """Takes bytes, if there are so many and an eighth stays for others.

        Args:
            whose: the tenant whose network it is, or a network that all share.
        """
        with self._lock:
            mine, free = self._of[whose] + size, self._free - size
            fits = free >= 0 and may_take(mine, free)
            if fits:
                self._of[whose], self._free = mine, free
        return fits

    def give_back(self, size: int, whose: str) -> None:
        with self._lock:
            self._of[whose] -= size
            self._free += size
            self._of += Counter()  # drops who has none


class Shadows:
    """The shadows of a server. Thread-safe: `_lock` guards the tables. The registry's lock is taken
    under it.

    Args:
        networks: the registry.
        load: loads a network, as `Core.load_network`. The last arguments are its owner and asker.
        unload: unloads a network.
        counts: how many requests the server has accepted, and how many of them have ended.
        asker: who sets a shadow, on the thread that does.
    """

    def __init__(
        self,
        networks: NetworkRegistry,
        load: Callable[[LoadRequest, Callable[[], Network], object, Asker], Future[NetworkEntry]],
        unload: Callable[[str], object],
        counts: Callable[[], tuple[int, int]],
        asker: Callable[[], Asker],
    ) -> None:
        self.networks = networks
        self.load = load
        self.unload = unload
        self.counts = counts
        self.asker = asker
        self.spare_time = SpareTime()
        self.memory = _SampleMemory()
        self.thread = Background("headrace-shadow")
        self._lock = threading.Lock()
        self._running: dict[str, _Requests] = {}
        self._series: dict[str, SeriesTable] = {}

    def set(
        self, name: str, shadow: Shadow, failed: Callable[[], object] = lambda: None
    ) -> Future[NetworkEntry] | None:
        """Gives a network a shadow in the place of the one that it has. The network need not be
        there yet.

        Args:
            name: the network's full name.
            shadow: as `check_shadow` returns it.
            failed: called after the shadow has ended because its load has failed. Any thread may
                call it, also an event loop's.

        Returns:
            The load on the shadow's device, if one has begun.

        Raises:
            As `Core.load_network`. The network then has no shadow, nor if the load fails.
        """
        with self._lock:
            before = self._running.get(name)
            if before is not None and before.shadow == shadow:
                return None
            self._running.pop(name, None)
            requests = None
            if shadow.percent:
                series = self._series.setdefault(name, SeriesTable())
                requests = self._running[name] = _Requests(self, name, shadow, series)
            self.networks.shadow(name, requests)
        if before is not None:
            before.end()
        if requests is None:
            return None
        try:
            load = requests.begin()
        except HeadraceError:
            self._end(requests)
            raise
        if load is not None:
            load.add_done_callback(partial(self._begun, requests, failed))
        return load

    def get(self, name: str) -> Shadow:
        """The shadow of a network."""
        with self._lock:
            requests = self._running.get(name)
        return NO_SHADOW if requests is None else requests.shadow

    def forget(self, name: str) -> None:
        """Ends the shadow of a network that is gone, with its series."""
        self.set(name, NO_SHADOW)
        with self._lock:
            self._series.pop(name, None)

    def snapshot(self) -> Snapshot:
        with self._lock:
            tables = list(self._series.values())
        return tuple(series for table in tables for series in table.snapshot())

    def stop(self) -> None:
        """Ends all shadows, and waits for the thread. Their networks stay."""
        with self._lock:
            running = list(self._running.values())
            self._running.clear()
        for each in running:
            self.networks.shadow(each.name, None)
            each.stop()
        self.thread.stop()

    def _begun(
        self, requests: _Requests, failed: Callable[[], object], load: Future[NetworkEntry]
    ) -> None:
        """Ends a shadow whose network could not be loaded on its device."""
        if (load.cancelled() or load.exception() is not None) and self._end(requests):
            failed()

    def _end(self, requests: _Requests) -> bool:
        """Ends a shadow. Returns False if another one has taken its place."""
        with self._lock:
            if self._running.get(requests.name) is not requests:
                return False
            del self._running[requests.name]
            self.networks.shadow(requests.name, None)
        requests.end()
        return True


class _Requests:
    """The requests that a network gives to its shadow. Thread-safe: `_lock` guards what waits, and
    only that of `_SampleMemory` is taken under it. `_source` belongs to the thread of the shadows,
    once `begin` has returned.

    Attributes:
        name: the network's full name.
        shadow: where the requests go.
    """

    def __init__(self, all_of: Shadows, name: str, shadow: Shadow, series: SeriesTable) -> None:
        self.name = name
        self.shadow = shadow
        self._all = all_of
        self._series = series
        for outcome in OUTCOMES:  # so that Prometheus sees the first one of each
            series.get(SHADOW_REQUESTS, name, outcome)
        self._turns = itertools.count(1)
        self._copy = copy_name(name)
        self._whose = owner_of(name) or name
        self._owner = object()  # of the copy
        self._asker = all_of.asker()
        self._source: NetworkEntry | None = None
        self._load: Future[NetworkEntry] | None = None
        self._lock = threading.Lock()
        self._waiting = 0
        self._ended = threading.Event()
        self._token = CancelToken()
        self._told: set[str] = set()

    # -- on the threads that submit and end requests: short, and never waiting --

    def __call__(self, entry: NetworkEntry, job: Job) -> None:
        """Looks at a request that is about to be submitted to a version of the network."""
        if job.ticket is not None or entry.key.version == self.shadow.version:
            return  # a step of a pipeline; a request to the shadow itself
        source = self._source
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
        job.observe(partial(self._answered, entry, _precision(entry.executable)))

    def _answered(self, entry: NetworkEntry, precision: str, job: Job) -> None:
        if job.outcome is not Outcome.COMPLETED:
            return
        inputs, outputs = dict(job.inputs), dict(job.outputs)
        size = _SAMPLE_BYTES + bytes_held([*inputs.values(), *outputs.values()])
        sample = _Sample(entry, inputs, job.output_names, outputs, precision, job.owner, size)
        job.follow(lambda _: self._keep(sample))  # after the caller's reply

    def _keep(self, sample: _Sample) -> None:
        with self._lock:
            fits = self._waiting < _MOST_WAITING
            fits = fits and self._all.memory.takes(sample.bytes, self._whose)
            self._waiting += fits
        if fits:
            self._all.thread.start(self, partial(self._take, sample))
        else:
            self._count("dropped")

    # -- on the thread of the shadows --

    def _take(self, sample: _Sample) -> None:
        try:
            if self._waits_for_spare_time():
                began = time.monotonic()
                self._count(self._compared(sample))
                self._all.spare_time.used(began, time.monotonic())
        finally:
            with self._lock:
                self._waiting -= 1
            self._all.memory.give_back(sample.bytes, self._whose)

    def _waits_for_spare_time(self) -> bool:
        """Returns False if the shadow has ended meanwhile."""
        while not self._all.spare_time.is_here(time.monotonic(), *self._all.counts()):
            if self._ended.wait(_LOOK_SECONDS):
                return False
        return not self._ended.is_set()

    def _compared(self, sample: _Sample) -> str:
        """Runs a request on the shadow. Returns its outcome, as metrics name it."""
        if self.shadow.device and self._source is not sample.entry:
            self._load_copy(sample.entry)
            return "dropped"
        name, version = (self._copy, "") if self.shadow.device else (self.name, self.shadow.version)
        try:
            entry = self._all.networks.acquire(name, version)
        except Unavailable:  # it is being loaded, or others need its memory
            return "dropped"
        except HeadraceError as error:
            return self._failed(error)
        try:
            assert entry.executable is not None
            network = entry.executable.behind  # no kept reply, and none that others get
            admission = network.place.admission
            if 2 * admission.in_flight > admission.capacity:
                return "dropped"
            return self._judged(sample, network, self._run(sample, entry, network))
        finally:
            self._all.networks.release(entry)

    def _run(self, sample: _Sample, entry: NetworkEntry, network: ExecutableNetwork) -> Job | None:
        """The request's end on the shadow; None if the queue is full."""
        ended = threading.Event()
        job = Job(
            sample.inputs,
            lambda _: ended.set(),
            output_names=sample.output_names,
            deadline=time.monotonic() + _RUN_SECONDS,
            priority=_PRIORITY,
            token=self._token.child(),
            trace="shadow",
            owner=sample.owner,
        )
        job.network, job.version, job.generation = entry.key
        try:
            network.submit(job)
            ended.wait()
        except QueueFull:
            return None
        except HeadraceError as error:
            job.error = error
        finally:
            job.token.close()
        return job

    def _judged(self, sample: _Sample, network: ExecutableNetwork, job: Job | None) -> str:
        if job is None or isinstance(job.error, Cancelled | DeadlineExceeded | Unavailable):
            return "dropped"
        if job.error is not None:
            return self._failed(job.take_error())
        precision = max(sample.precision, _precision(network), key=_PRECISIONS.index)
        whose = f"version {sample.entry.key.version}"
        relative, why = difference(job.outputs, sample.outputs, precision, whose)
        self._series.get(SHADOW_DIFFERENCE, self.name).add(relative)
        if why:
            self._tell("differs", why)
            return "differs"
        return "close" if relative else "equal"

    def _failed(self, error: BaseException) -> str:
        known = isinstance(error, HeadraceError)
        self._tell("failed", str(error) if known else type(error).__name__)
        return "failed"

    def _tell(self, outcome: str, why: str) -> None:
        """Logs the first request of an outcome."""
        if outcome not in self._told:
            self._told.add(outcome)
            text = "network %s: the first request that %s on its shadow, %s: %s"
            _log.warning(text, self.name, outcome, self.shadow, why)

    def _count(self, outcome: str) -> None:
        self._series.get(SHADOW_REQUESTS, self.name, outcome).add(1)

    # -- the network on the shadow's device --

    def begin(self) -> Future[NetworkEntry] | None:
        """Loads the network on the shadow's device, if it is there. Raises as
        `Core.load_network`."""
        if not self.shadow.device:
            return None
        try:
            entry = self._all.networks.find(self.name)
        except NotFound:
            return None
        if entry.state is not NetworkState.READY:
            return None  # its first request that is chosen loads it
        return self._copied(entry)

    def _load_copy(self, entry: NetworkEntry) -> None:
        """Loads the network again after another one has replaced it."""
        try:
            self._copied(entry)
        except HeadraceError as error:
            if isinstance(error, AlreadyExists) and not (self._load is None or self._load.done()):
                return  # an earlier load is under way; the next request asks again
            self._source = entry
            self._failed(error)

    def _copied(self, entry: NetworkEntry) -> Future[NetworkEntry]:
        def read() -> Network:
            network: Network | None = entry.record.network
            if network is None:
                raise Cancelled(f"network {plain_name(self.name)!r} was unloaded meanwhile")
            return network

        asked: LoadRequest = entry.record.request
        request = replace(
            asked,
            name=self._copy,
            version="1",
            device=DeviceName.parse(self.shadow.device, field="device"),
            config={},
            options=replace(asked.options, affinities={}, members=()),
            reference=None,
            warm_ups=(),
        )
        # A stranger's model stays one, whoever sets the shadow, and whichever thread loads it.
        asker = self._asker if entry.asker.trusted else entry.asker
        self._load = self._all.load(request, read, self._owner, asker)
        self._source = entry
        self._load.add_done_callback(self._loaded)
        return self._load

    def _loaded(self, load: Future[NetworkEntry]) -> None:
        if self._ended.is_set():
            self._unload()
        elif not load.cancelled() and (error := load.exception()) is not None:
            self._failed(error)

    # -- end --

    def stop(self) -> None:
        """Ends what runs and what waits."""
        self._ended.set()
        self._token.cancel(Cancelled("the shadow has ended"))

    def end(self) -> None:
        """Ends the shadow for good, and unloads its network."""
        self.stop()
        if self._load is not None and self._load.done():
            self._unload()

    def _unload(self) -> None:
        networks = self._all.networks
        if any(entry.owner is self._owner for entry in networks.versions(self._copy)):
            with suppress(NotFound):  # a client has unloaded it
                self._all.unload(self._copy)


def bytes_held(values: Sequence[Value]) -> int:
    """The bytes of the memory that values keep. A value may be a small part of it: of a message, or
    of a batch. Values of too many parts to be measured in passing have too many.
    """
    memory: dict[int, int] = {}
    parts = [*values]
    for value in parts:
        if value is None:
            continue
        if isinstance(value, list):
            parts += value[: _MOST_PARTS + 1]
        elif value.dtype == object:
            found = value.reshape(-1)[: _MOST_PARTS + 1]
            if len(found) > _MOST_PARTS:
                return _MOST_BYTES + 1
            memory[id(value)] = sum(map(len, found))
        else:
            of, size = _memory(value)
            memory[of] = size
        if len(parts) > _MOST_PARTS + len(values):
            return _MOST_BYTES + 1
    return sum(memory.values())


def _memory(array: Any) -> tuple[int, int]:
    """What an array lies in, as an identity and its bytes."""
    whole: Any = array
    while isinstance(whole, np.ndarray) and whole.base is not None:
        whole = whole.base
    if isinstance(whole, memoryview):
        whole = whole.obj
    try:
        size = whole.nbytes if isinstance(whole, np.ndarray) else memoryview(whole).nbytes
    except TypeError:  # a backend's own memory
        size = array.nbytes
    return id(whole), size


def _precision(network: ExecutableNetwork) -> str:
    """In which the network computes, as its configuration says."""
    said = network.config.get(INFERENCE_PRECISION_HINT)
    return said if said in _PRECISIONS else _PRECISIONS[0]
