"""A network compiled for a device.

The public methods validate and count. The device implements the hooks with an underscore. A device
that computes on its streams writes `_infer` and perhaps `_preprocess` and `_postprocess`. A virtual
device passes no executor and overrides `_start`, which begins a state machine that completions
advance.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Final

import onnx_ir as ir

from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.config.standard_keys import EXECUTION_TIMEOUT, PERF_COUNT
from headrace.runtime.device.job_spans import record
from headrace.runtime.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    QueueFull,
    Unavailable,
)
from headrace.runtime.execution.admission import Admission
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.execution_timeout import Patience
from headrace.runtime.execution.job import Delegation, Job, LayerProfile, Outcome
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.execution.request_shapes import RequestShapes
from headrace.runtime.execution.stages import Dispatcher, Stage, StageRunner
from headrace.runtime.execution.streams_executor import Share, StreamsExecutor
from headrace.runtime.execution.timer import Timer
from headrace.runtime.execution.trace import Exemplar, Span
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.metrics.device_counters import DeviceCounters
from headrace.runtime.metrics.statistics import Statistics
from headrace.runtime.network.graph import RunningShape, RunningSubgraph
from headrace.runtime.network.network import Layer, Network, Port

_log = logging.getLogger(__name__)

_NUMBERS: Final = itertools.count(1)
_NOTHING = Network(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10))
"""The empty network that a closed network keeps, so that references to it keep no weights."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a compiled network runs. The plugin gives it to the network when it opens it."""

    device: str
    admission: Admission
    counters: DeviceCounters
    timer: Timer


class ExecutableNetwork:
    """Takes jobs and gives each exactly one outcome. Thread-safe after `open`.

    Args:
        network: the network as transformed for the device.
        config: the effective configuration.
        executor: the device's streams; None for a virtual device.
        streams: the most streams that this network may use.

    Attributes:
        notes, restored, loaded_from_cache: as in `Loaded`; the plugin sets them before `open`.
        statistics: the statistics of the requests, from when the network has its name.
        number: no other network of this process has it.
        on_streams: whether its requests run on the streams of its own device.
    """

    inline_safe: ClassVar[bool] = False
    """Whether a tiny network may run on the thread that submits the request. That needs a device
    that computes on the calling thread and needs no stream of its own."""

    process: ClassVar[str] = ""  # that runs the requests, if it is not the server

    notes: tuple[str, ...] = ()
    restored: bool = False
    loaded_from_cache: bool = False
    knows_callers: ClassVar[bool] = False
    """Whether it tells apart who sends a request: it needs `Job.owner`."""

    maps_weights: bool = False
    """Whether its weights lie in a file that other loads of the same network map, too."""

    inputs_may_change: bool = False
    """Whether a request only gets wrong results if another process writes to its inputs."""

    defaults: tuple[Port, ...] = ()
    """Inputs that a request may give, and for which the network has values if it does not. They are
    not among `inputs`."""

    counts_rows: bool = True
    """Whether a request's rows are counted when it ends. If not, the rows of each run are."""

    _start: Callable[[Job], None]
    """Begins a job and returns. It is a method of a virtual device; of others it is the start of
    their `StageRunner`."""

    delegates: ClassVar[bool] = False
    """Whether it may have another device run its caller's own job."""

    _delegation: Delegation | None = None
    """How another device runs all requests that are neither traced nor profiled, if one does."""

    runs: frozenset[tuple[str, str]] = frozenset()
    """The full names of the networks of the server that its requests run, each with its version, or
    an empty one. A device's networks run no others."""

    states: Mapping[str, str] = MappingProxyType({})
    """The inputs that the runtime keeps between the requests of a sequence. Each maps to the output
    that gives its next value. Neither is among `inputs` and `outputs`."""

    def __init__(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor | None = None,
        *,
        streams: int = 1,
    ) -> None:
        self.network = network
        self.config = config
        self.executor = executor
        self.inputs = network.inputs
        self.outputs = network.outputs
        self.name = ""
        self.number = next(_NUMBERS)
        self.last_profile: tuple[LayerProfile, ...] = ()
        self.place: Place
        self._check = PortCheck(self.inputs, self.outputs)
        self._share = executor.share(streams) if executor is not None else None
        self.on_streams = executor is not None
        self.statistics = Statistics()
        self._network_counters: NetworkCounters | None = None
        self._runner: StageRunner
        self._perf_count = config.get(PERF_COUNT)
        self._closed = False

    # -- life --

    def open(self, place: Place) -> None:
        """The plugin calls this once, before the first job."""
        self.place = place
        self._runner = StageRunner(
            self._stages(),
            place.timer,
            execution_timeout=self.config.get(EXECUTION_TIMEOUT),
            inline=self.executor.inline_budget(safe=self.inline_safe) if self.executor else None,
            dispatcher=self._dispatcher(),
            patience=self.patience(),
        )
        if not hasattr(type(self), "_start"):
            self._start = self._runner.start

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        """Gives the network its name in the registry and its own counters; parts have none."""
        self.name = name
        self._network_counters = counters

    def close(self) -> None:
        """Releases the backend and the network. The caller makes sure that no job is left. What a
        device raises is in the log, so that who closes several networks closes all."""
        if not self._closed:
            self._closed = True
            try:
                self._close()
            except Exception:  # noqa: BLE001 - as above
                _log.exception("a network did not close")
            self.forget_network()
            vars(self).pop("_start", None)
            if runner := vars(self).pop("_runner", None):  # its stages refer to this network
                runner.timeout.close()

    def forget_network(self) -> None:
        """Keeps no reference to the network any more, for a device that has its own copy."""
        self.network = _NOTHING

    # -- inference --

    def submit(self, job: Job) -> None:
        """Accepts the job. An accepted job has exactly one outcome. `job.done` gets it on any
        thread. Never blocks, unless the job may run inline and the network is known to be quick.

        Raises:
            InvalidArgument: an input or output is not as the network declares it, or the job
                belongs to a sequence and the network keeps no states.
            QueueFull: as many requests as the device admits are in flight.
            Unavailable: the network is closed.
            A job that is refused with one of these is not accepted, and `done` is not called.
        """
        if self._closed:
            raise Unavailable(f"network {self.name!r} has been unloaded")
        place = self.place
        if job.ticket is None:
            if job.sequence is not None and not self.states:
                raise InvalidArgument(
                    f"network {self.name!r} keeps no states, so its requests belong to no "
                    "sequence: leave the sequence out, or load the network with STATES",
                    field="session",
                )
            self._check(job)
            if self._request_shapes.counts:
                self._request_shapes.add(self._request_shapes.of(job.inputs))
            try:
                place.admission.admit(job)
            except QueueFull:
                place.counters.refuse("queue_full")
                raise
            job.observe(self._request_settled)
            if self._network_counters is not None:
                self._network_counters.accept()
            place.counters.accept()
        else:
            job.observe(self.count_part)
            if self._network_counters is not None:  # it has a name, as a step of a pipeline
                if job.network:
                    self._network_counters.accept()
                if self._request_shapes.counts:
                    self._request_shapes.add(self._request_shapes.of(job.inputs))
            place.counters.accept_part()
        if self._perf_count:
            job.profile = True
        is_armed = job.queued > 0  # by the network that the caller gave it to
        job.queued = time.monotonic()
        try:
            if job.deadline is None or is_armed or self._arm_deadline(job, job.deadline):
                self.start(job)
        except Exception as error:  # noqa: BLE001 - an accepted job has an outcome, whatever happens
            job.fail(error)

    def start(self, job: Job) -> None:
        """Starts a job that has been accepted.

        Raises:
            Whatever the device raises. The job is then the caller's to fail.
        """
        delegation = self._delegation
        if delegation is None or job.span is not None or job.profile:
            self._start(job)
        else:
            job.delegation = delegation
            delegation.start(job)

    def check(self, job: Job) -> None:
        """Checks that a part's inputs and outputs are as the network declares. `submit` does so
        only for whole requests.

        Raises:
            InvalidArgument: one is not.
        """
        self._check(job)

    def compute(self, job: Job) -> None:
        """Computes the outputs of another network's job on the calling thread. The job stays the
        other network's: it is not counted here and gets no outcome. For a device that has this one
        stand behind it.

        Raises:
            Whatever the device raises.
        """
        for _, stage in self._stages():
            stage(job)

    def _arm_deadline(self, job: Job, deadline: float) -> bool:
        token = job.token
        if deadline <= job.queued:
            job.fail(_expire(token))
            return False
        timer = self.place.timer
        entry = timer.schedule(deadline, lambda: _expire(token))
        job.observe(lambda _: timer.cancel(entry))
        return True

    def _request_settled(self, job: Job) -> None:
        place, outcome = self.place, job.outcome
        assert outcome is not None
        place.admission.release(job)
        exemplar = None if job.span is None else self._record(job, job.span, part=False)
        if self._network_counters is not None:
            self._count_request(self._network_counters, job, outcome, exemplar)
        self._observe(job, outcome, exemplar, part=False)

    def count_part(self, job: Job) -> None:
        """Counts the end of a part."""
        outcome = job.outcome
        assert outcome is not None
        exemplar = None if job.span is None else self._record(job, job.span, part=True)
        if job.network and self._network_counters is not None:
            self._count_request(self._network_counters, job, outcome, exemplar)
        self._observe(job, outcome, exemplar, part=True)

    def _observe(
        self, job: Job, outcome: Outcome, exemplar: Exemplar | None, *, part: bool
    ) -> None:
        started, finished = job.started, job.finished
        waited, ran = (started or finished) - job.queued, finished - started if started else None
        delegation, counters = job.delegation, self.place.counters
        if delegation is None:
            counters.observe(outcome, waited, ran, part, exemplar)
        else:
            job.delegation = None
            counters.observe(outcome, waited, ran, part, exemplar, delegation.count)
            delegation.completed(job)  # which may close the device's network
        if job.layers:
            self.last_profile = tuple(job.layers)

    def _count_request(
        self, counters: NetworkCounters, job: Job, outcome: Outcome, exemplar: Exemplar | None
    ) -> None:
        """Counts a request to the network, or a part that a pipeline gave it."""
        rows, counts = self._check.batch_size(job), self.counts_rows and job.started > 0
        counters.observe(outcome, job.finished - job.queued, rows if counts else None, exemplar)
        self.statistics.observe(job, rows, is_run=counts)

    def _record(self, job: Job, span: Span, *, part: bool) -> Exemplar:
        where = self.name, self.place.device
        record(job, span, *where, part=part, on_streams=self.on_streams, process=self.process)
        return span.exemplar(job.finished)

    # -- what it says of itself --

    @property
    def behind(self) -> ExecutableNetwork:
        """The network that computes each request, behind one that may answer it itself."""
        return self

    @property
    def runs_jobs_of_others(self) -> bool:
        """Whether a virtual device may delegate jobs to it: it would neither delegate them in turn,
        nor profile them."""
        return not (self.delegates or self._perf_count)

    def random_layers(self) -> tuple[str, ...]:
        """The layers that give other outputs for the same inputs the next time."""
        return self.network.random_layers

    def sources(self) -> tuple[int, ...] | None:
        """What the outputs of a request follow from besides its inputs: the `number` of each other
        network that it runs by name. None if the same request may get other outputs the next time.
        It is asked for each request."""
        return None if self.states or self._draws else ()

    @cached_property
    def _request_shapes(self) -> RequestShapes:
        return RequestShapes(self.inputs)  # as the device has left them

    @cached_property
    def _draws(self) -> bool:
        return bool(self.random_layers())

    def has_sequence(self, identifier: str) -> bool:  # noqa: ARG002 - of one that keeps states
        """Whether a sequence of this id is open. Takes no lock."""
        return False

    def unready(self) -> str:
        """Why it cannot take requests now, though it is loaded; empty if it can."""
        return ""

    def works(self, up: Mapping[str, bool]) -> bool:
        """Whether requests are answered while devices are up or not. Those that are not named
        are."""
        return all(up.get(device, True) for device in self._execution_devices())

    @property
    def sequence_owners(self) -> frozenset[str]:
        """The identities that have sequences open; empty for one without. Takes no lock."""
        return frozenset()

    def subgraphs(self) -> tuple[RunningSubgraph, ...]:
        """The parts of a network that is split over devices, in execution order."""
        return ()

    def shapes(self) -> tuple[RunningShape, ...]:
        """What runs the shapes that requests have had last, the last one first; empty if the device
        runs all shapes alike."""
        return ()

    def is_settled(self) -> bool:
        """Whether the next request will run as the last one did, if it has the same shapes. A
        device that still tries something out for these shapes says no."""
        return True

    def layers(self) -> tuple[Layer, ...]:
        """The graph that the device runs."""
        return tuple(
            layer if layer.device else replace(layer, device=self.place.device)
            for layer in self._layers()
        )

    def get_metric(self, name: str) -> ParameterValue:
        """The value of a metric of the loaded network.

        Raises:
            NotFound: if it has no such metric.
        """
        metrics = self.metrics()
        if name not in metrics:
            raise NotFound.unknown("network metric", name, metrics, field="name")
        return metrics[name]()

    def metrics(self) -> dict[str, Callable[[], ParameterValue]]:
        """Every metric by name, the device's own included."""
        table: dict[str, Callable[[], ParameterValue]] = {
            "SUPPORTED_METRICS": lambda: list(table),
            "SUPPORTED_CONFIG_KEYS": lambda: self.config.schema.names,
            "NETWORK_NAME": lambda: self.name,
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self._optimal_number_of_infer_requests,
            "EXECUTION_DEVICES": self._execution_devices,
            "LOADED_FROM_CACHE": lambda: self.loaded_from_cache,
            "REQUEST_SHAPES": lambda: self._request_shapes.to_texts(),
            "NOTES": lambda: list(self.notes),
            **self._metrics(),
        }
        return table

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes keys that may change on a loaded network.

        Raises:
            NotFound, InvalidArgument: as `Configuration.changed`.
        """
        self.config = self.config.changed(changes)
        if not self._closed:
            self._runner.timeout.seconds = self.config.get(EXECUTION_TIMEOUT)

    def export(self) -> bytes:
        """The backend's own bytes. They are empty if an import has to compile the network again."""
        return self._export()

    def _dispatcher(self) -> Dispatcher | None:
        """What starts jobs in another process, for a device that needs no thread to wait there."""
        return None

    def patience(self) -> Patience | None:
        """What is done about a run that goes on after it has been cancelled; None for nothing."""
        return None

    # -- hooks of the device --

    def _stages(self) -> list[tuple[Share, Stage]]:
        """The stages of each request. Override it if a stage runs on an executor of its own."""
        if self._share is None:
            return []
        share, base, mine = self._share, ExecutableNetwork, type(self)
        stages: list[tuple[Share, Stage]] = [(share, self._timed_infer)]
        if mine._preprocess is not base._preprocess:
            stages.insert(0, (share, self._preprocess))
        if mine._postprocess is not base._postprocess:
            stages.append((share, self._postprocess))
        return stages

    def _preprocess(self, job: Job) -> None:
        """Turns `job.inputs` into what the backend takes."""

    def _infer(self, job: Job) -> None:
        """Computes the outputs. It stops if `job.token` is cancelled, and fills `job.layers` if
        `job.profile` is True."""
        raise NotImplementedError

    def _postprocess(self, job: Job) -> None:
        """Turns what the backend gave into `job.outputs`."""

    def _export(self) -> bytes:
        return b""

    def _close(self) -> None:
        """Frees what the backend holds."""

    def _layers(self) -> tuple[Layer, ...]:
        return self.network.layers

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        """The device's own metrics of a loaded network."""
        return {}

    def _optimal_number_of_infer_requests(self) -> int:
        """The network's share of the device's streams, but no more than the device has now."""
        if self._share is None:
            return 1
        return max(1, min(self._share.limit, self._share.executor.streams))

    def _execution_devices(self) -> list[str]:
        return [self.place.device]

    def _timed_infer(self, job: Job) -> None:
        job.prepared = time.monotonic()
        self._infer(job)
        job.inferred = time.monotonic()


def _expire(token: CancelToken) -> DeadlineExceeded:
    late = DeadlineExceeded("the deadline passed before the request finished")
    token.cancel(late)
    return late
