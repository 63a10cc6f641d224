"""A network that answers requests with the same inputs from the replies that it has kept."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from headrace.runtime.config.key import config_field
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.config.standard_keys import PERF_COUNT
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.front import NetworkInFront
from headrace.runtime.errors import InvalidArgument, RanTooLong
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.trampoline import Trampoline
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.metrics.series import Family, Series, SeriesSnapshot
from headrace.runtime.network.values import Value, size_bytes
from headrace.runtime.responses import keys
from headrace.runtime.responses.digest import digest_of, work_of
from headrace.runtime.responses.keys import RESPONSE_CACHE, RESPONSE_CACHE_BYTES
from headrace.runtime.responses.memory import ResponseMemory, kept, kept_bytes

_log = logging.getLogger(__name__)

HITS: Final = Family(
    "network_response_cache_hits_total",
    "counter",
    (),
    "Requests that got a kept reply, or the reply of the same request that was in flight.",
)
MISSES: Final = Family(
    "network_response_cache_misses_total",
    "counter",
    (),
    "Requests that ran, because there was no reply for their inputs.",
)
SKIPPED: Final = Family(
    "network_response_cache_skipped_total",
    "counter",
    (),
    "Requests that ran without a look into the response cache: they ask for performance counts, or "
    "the versions of a pipeline's network share its requests.",
)
EVICTED: Final = Family(
    "network_response_cache_evicted_total",
    "counter",
    (),
    "Kept replies that made room for others.",
)
BYTES: Final = Family(
    "network_response_cache_bytes", "gauge", (), "What the kept replies of the network take."
)
FAMILIES: Final = (HITS, MISSES, SKIPPED, EVICTED, BYTES)

INLINE_BYTES: Final = 1 << 17
"""A request with so many bytes is looked up on the thread that submits it: the digest of this many
takes some 0.1 ms."""
_COPIED_AT_ONCE: Final = 1 << 20
"""A reply with so many bytes is copied on the thread that ends its request."""
_LAYERS_TOLD: Final = 3


def load_with_responses(
    memory: ResponseMemory,
    config: Mapping[str, str],
    load: Callable[[dict[str, str]], ExecutableNetwork],
) -> ExecutableNetwork:
    """Loads a network. If its configuration asks for it, puts a `CachingNetwork` in front of it.

    Args:
        memory: of the server.
        config: the whole configuration of the load.
        load: loads the network with the rest of `config`.

    Raises:
        InvalidArgument: the network keeps states, or computes with random numbers.
        As `load`.
    """
    own, rest = keys.split(config)
    network = load(rest)
    if own is None:
        return network
    try:
        _check_same_every_time(network)
        return CachingNetwork(network, own, memory)
    except BaseException:
        network.close()
        raise


def _check_same_every_time(network: ExecutableNetwork) -> None:
    field = config_field(RESPONSE_CACHE.name)
    if network.states:
        raise InvalidArgument(
            "the network keeps states, so the same inputs give other outputs the next time: leave "
            f"{RESPONSE_CACHE.name} or STATES out",
            field=field,
        )
    random = network.random_layers()
    if random:
        more = f" and {len(random) - _LAYERS_TOLD} more" if len(random) > _LAYERS_TOLD else ""
        raise InvalidArgument(
            f"the network computes with random numbers ({', '.join(random[:_LAYERS_TOLD])}{more}), "
            f"so the same inputs give other outputs the next time: leave {RESPONSE_CACHE.name} out",
            field=field,
        )


class _Flight:
    """A request that runs, and those with the same inputs that wait for its reply. The network's
    lock guards all that changes.

    Attributes:
        key: the owner of the requests, and their digest.
        priority: of the one that runs.
    """

    __slots__ = ("key", "priority", "waiting")

    def __init__(self, key: tuple[str, bytes], priority: int) -> None:
        self.key = key
        self.priority = priority
        self.waiting: list[_WaitingRequest] = []


@dataclass(slots=True, eq=False, repr=False)
class _WaitingRequest:
    """A request that waits for the reply of another one."""

    job: Job
    flight: _Flight
    looked_up_seconds: float
    _leave: Callable[[_WaitingRequest], object]

    def listen(self) -> None:
        """Ends the request as soon as it is cancelled. It may already have ended on another
        thread: either that thread finds the hook, or this method sees the outcome."""
        self.job.token.attach(self.cancelled)
        if self.job.outcome is not None:
            self.stop_listening()

    def stop_listening(self) -> None:
        self.job.token.detach(self.cancelled)

    def cancelled(self) -> None:
        self._leave(self)


class CachingNetwork(NetworkInFront):
    """Keeps the replies of the network behind it. Thread-safe: `_lock` guards the flights. The lock
    of the memory is taken under it. No job is started or settled under it.

    Two requests are the same if their inputs and the names of their outputs are, and the same
    identity sends them: neither a reply nor the time that it takes tells a client what another one
    has asked. Of requests that are the same and in flight together, one runs. If it is cancelled or
    its deadline passes, the next one runs. If it fails, all fail. A request with a higher priority
    than the one that runs does not wait for it, but runs itself.

    A reply is looked up on the thread that submits the request, or on one of the memory's if its
    inputs are large. It is kept on the thread that ends the run, before the end is reported, or on
    one of the memory's if it is large. Until then the request is in flight.

    Args:
        inner: the compiled network. It is open, and is closed with this network.
        own: the configuration of the response cache.
        memory: of the server.
    """

    knows_callers: ClassVar[bool] = True

    def __init__(
        self, inner: ExecutableNetwork, own: Configuration, memory: ResponseMemory
    ) -> None:
        super().__init__(inner, own)
        self._perf_count = False  # a request that only runs with counts may get a kept reply
        self._memory = memory
        self._replies = memory.of_network(own[RESPONSE_CACHE_BYTES])
        self._lock = threading.Lock()
        self._flights: dict[tuple[str, bytes], _Flight] = {}
        self._trampoline: Trampoline[tuple[_Flight, Job]] = Trampoline()
        self._counts: dict[Family, Series] = {}
        self._end_series: Callable[[], None] = lambda: None

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        limit, wanted = self._memory.limit, self.config[RESPONSE_CACHE_BYTES]
        if wanted <= limit:
            return self.inner.notes
        told = f"the server keeps replies of at most {limit} bytes (--max-response-cache-bytes)"
        return (*self.inner.notes, f"{RESPONSE_CACHE_BYTES.name} is {wanted}, and {told}")

    @property
    def behind(self) -> ExecutableNetwork:
        return self.inner

    # -- everything except requests --

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self._counts = {family: counters.series.get(family) for family in (HITS, MISSES, SKIPPED)}
        self._end_series = counters.series.add(self._series)

    def sources(self) -> tuple[int, ...] | None:
        return self.inner.sources()

    def _configured(self) -> None:
        self._replies.resize(self._own[RESPONSE_CACHE_BYTES])

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {
            "RESPONSE_CACHE_HITS": lambda: self._total(HITS),
            "RESPONSE_CACHE_MISSES": lambda: self._total(MISSES),
            "RESPONSE_CACHE_USED_BYTES": lambda: self._replies.bytes,
        }

    def _close(self) -> None:
        self._end_series()
        self._replies.close()
        self.inner.close()

    # -- requests --

    def _start(self, job: Job) -> None:
        sources = None if job.profile or job.room is not None else self.inner.sources()
        if sources is None:
            self._count(SKIPPED)
            self._run(job)
        elif work_of(job.inputs) <= INLINE_BYTES:
            self._enter(job, self._key(job, sources))
        else:
            self._enter_later(job, sources)

    def _key(self, job: Job, sources: tuple[int, ...]) -> tuple[str, bytes]:
        facts = (job.output_names, sources)
        return job.owner, digest_of(self._memory.secret, facts, job.inputs)

    def _enter_later(self, job: Job, sources: tuple[int, ...]) -> None:
        """Looks the reply up on another thread. If the job is cancelled before, it ends then."""
        give_up = partial(_give_up, job)
        job.token.attach(give_up)

        def look_up() -> None:
            key = self._key(job, sources)
            if job.token.detach(give_up):  # if not, the job has ended, or ends in a moment
                self._enter(job, key)

        self._memory.later(partial(_settled, job, look_up))

    def _enter(self, job: Job, key: tuple[str, bytes]) -> None:
        """Answers the job, or lets it wait for another one, or starts it."""
        waiting: _WaitingRequest | None = None
        with self._lock:
            outputs = self._replies.get(*key)
            flight = self._flights.get(key)
            looked_up = time.monotonic() - job.queued
            if outputs is None and flight is not None and job.priority <= flight.priority:
                waiting = _WaitingRequest(job, flight, looked_up, self._leave)
                flight.waiting.append(waiting)
            elif outputs is None:
                flight = self._flights[key] = _Flight(key, job.priority)
        if outputs is not None:
            self._answer(job, outputs, looked_up)
        elif waiting is not None:
            waiting.listen()
        else:
            assert flight is not None
            self._lead(flight, job)

    def _lead(self, flight: _Flight, job: Job) -> None:
        """Starts the request of a flight that runs."""
        looked_up = time.monotonic() - job.queued
        job.observe(partial(self._ended, flight, looked_up))
        if job.span is not None:
            job.span.facts["headrace.response_cache"] = "miss"
        self._run(job)

    def _run(self, job: Job) -> None:
        if self.config.get(PERF_COUNT):
            job.profile = True
        self.inner.start(job)

    def _answer(self, job: Job, outputs: Mapping[str, Value], looked_up: float) -> None:
        """Ends a job with outputs that others may have too."""
        job.outputs = dict(outputs)
        if job.span is not None:
            job.span.facts["headrace.response_cache"] = "hit"
        self._count(HITS)
        self.statistics.observe_reply(looked_up, kept=True)
        job.complete()

    def _ended(self, flight: _Flight, looked_up: float, job: Job) -> None:
        """Lets the next request run if the one that ran was given up, and otherwise answers those
        that wait."""
        self._count(MISSES)
        if not _was_given_up(job):
            self._hand_out(flight, looked_up, job)
            return
        following: Job | None = None
        with self._lock:
            if flight.waiting:
                next_one = flight.waiting.pop(0)
                next_one.stop_listening()
                following = next_one.job
                flight.priority = following.priority
            else:
                self._forget(flight)
        if following is not None:
            job.follow(lambda _: self._trampoline(self._go_on, [(flight, following)]))

    def _hand_out(self, flight: _Flight, looked_up: float, job: Job) -> None:
        """Keeps the reply of a job, and gives it to those that wait. A large one is copied on
        another thread: the one that has ended the job may be that of the event loop."""
        outputs, error = dict(job.outputs), job.error
        land = partial(self._land, flight, looked_up, outputs, error)
        if error is None and sum(map(size_bytes, outputs.values())) > _COPIED_AT_ONCE:
            with suppress(RuntimeError):  # there is no thread
                self._memory.later(land)
                return
        land()

    def _land(
        self,
        flight: _Flight,
        looked_up: float,
        outputs: dict[str, Value],
        error: BaseException | None,
    ) -> None:
        began = time.monotonic()
        shared = self._kept(flight.key, outputs) if error is None else {}
        self.statistics.observe_reply(looked_up + time.monotonic() - began, kept=False)
        with self._lock:
            waiting, flight.waiting = flight.waiting, []
            self._forget(flight)
        for each in waiting:
            if error is None:
                self._answer(each.job, shared, each.looked_up_seconds)
            else:
                each.job.fail(error)
            each.stop_listening()  # after the outcome; see `listen`

    def _kept(self, key: tuple[str, bytes], outputs: dict[str, Value]) -> Mapping[str, Value]:
        """Keeps outputs, if they fit. Returns what others may get."""
        try:
            size = kept_bytes(outputs)
            if not self._replies.fits(size):
                return outputs
            copies = {name: kept(value) for name, value in outputs.items()}
            self._replies.put(*key, copies, size)
        except Exception:  # noqa: BLE001 - for want of memory; those that wait get their reply
            _log.exception("a reply could not be kept")
            return outputs
        return copies

    def _forget(self, flight: _Flight) -> None:
        """Lets the next request run that is the same. The caller holds the lock."""
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _go_on(self, step: tuple[_Flight, Job], _: bool) -> None:
        """Starts the next request of a flight."""
        flight, job = step
        _settled(job, partial(self._lead, flight, job))

    def _leave(self, waiting: _WaitingRequest) -> None:
        """Ends a request that was cancelled while it waited."""
        with self._lock:
            waits = waiting in waiting.flight.waiting
            if waits:
                waiting.flight.waiting.remove(waiting)
        if waits:
            _give_up(waiting.job)

    # -- inside --

    def _count(self, family: Family) -> None:
        if self._counts:
            self._counts[family].add(1)

    def _total(self, family: Family) -> int:
        count = self._counts[family].snapshot() if self._counts else 0
        assert isinstance(count, int | float)
        return int(count)

    def _series(self) -> Iterable[SeriesSnapshot]:
        return (
            SeriesSnapshot(EVICTED, (), self._replies.evicted),
            SeriesSnapshot(BYTES, (), self._replies.bytes),
        )


def _was_given_up(job: Job) -> bool:
    """Whether the job ended because its own caller did not want it any more."""
    error = job.token.error
    return job.error is not None and error is not None and not isinstance(error, RanTooLong)


def _give_up(job: Job) -> None:
    error = job.token.error
    assert error is not None
    job.fail(error)


def _settled(job: Job, begin: Callable[[], object]) -> None:
    """Begins a job; it fails if it cannot begin."""
    try:
        begin()
    except Exception as error:  # noqa: BLE001 - an accepted job has an outcome, whatever happens
        job.fail(error)
