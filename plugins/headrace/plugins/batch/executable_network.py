"""A network whose requests run together, on another device."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.plugins.batch.running.collector import Collector, Shape
from headrace.plugins.batch.running.request import BatchMember
from headrace.plugins.batch.running.scheduler import BatchScheduler
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.config.standard_keys import (
    AUTO_BATCH_TIMEOUT,
    INFERENCE_NUM_THREADS,
    NUM_STREAMS,
    PERFORMANCE_HINT_NUM_REQUESTS,
)
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.network.graph import RunningShape, RunningSubgraph
from headrace.runtime.network.network import Layer, Network
from headrace.runtime.virtual.networks import (
    execution_devices,
    optimal_requests,
    set_known,
    showing,
)


@dataclass(frozen=True, slots=True)
class Found:
    """What a load has found out about a network, for JSON.

    Attributes:
        whole: what is told of the network as the caller sees it.
        given: the same of the network that takes batches; empty if it is that one.
        shared, padded_to: see `Shape`.
        apart: why its requests cannot run together; empty if they can.
    """

    whole: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    shared: Sequence[str] = ()
    padded_to: int = 0
    notes: Sequence[str] = ()
    apart: str = ""


class BatchNetwork(ExecutableNetwork):
    """Owns no streams: its batches run on the streams of the inner network's device.

    Args:
        network: the network as the caller sees it.
        inner: the network that takes batches. It is closed with this one, unless it is `lent`.
        size: most rows of a batch.
        found: what its load has found out.
        executors: the executors that the inner network runs on.
        lent: whether the inner network also serves by itself.

    Attributes:
        apart: as in `Found`. If it is not empty, the network cannot be opened.
    """

    counts_rows = False

    def __init__(
        self,
        network: Network,
        config: Configuration,
        inner: ExecutableNetwork,
        size: int,
        found: Found,
        executors: ExecutorManager,
        *,
        lent: bool = False,
    ) -> None:
        super().__init__(network, showing(config, inner, (NUM_STREAMS, INFERENCE_NUM_THREADS)))
        self.inner = inner
        self.size = size
        self.apart = found.apart
        self.defaults = () if found.padded_to else inner.defaults
        self._check = PortCheck(self.inputs, self.outputs, self.defaults)
        self._found = found
        self._executors = executors
        self._lent = lent
        self._unfollow: Callable[[], None] = lambda: None
        self._collector: Collector | None = None

    @property
    def collector(self) -> Collector:
        assert self._collector is not None, "the network is not open"
        return self._collector

    def open(self, place: Place) -> None:
        super().open(place)
        found = self._found
        self._collector = Collector(
            BatchScheduler[BatchMember](self.size, self._slots(), self._timeout()),
            Shape(
                tuple(port.name for port in self.network.inputs),
                frozenset(found.shared),
                found.padded_to,
            ),
            self.inner,
            place.admission.ticket,
            place.timer,
            found.whole["origins"],
            self._count,
        )
        self._unfollow = self._executors.subscribe(self._follow_streams)

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes the inner network's keys, too."""
        super().set_config(changes)
        set_known(self.inner, changes)
        self.collector.timeout = self._timeout()

    def take_over(self) -> None:
        """Takes over the lent network, which now serves nothing else."""
        self._lent = False

    def entry(self) -> bytes:
        """What the next load need not find out again."""
        return json.dumps(asdict(self._found)).encode()

    def subgraphs(self) -> tuple[RunningSubgraph, ...]:
        return self.inner.subgraphs()

    def shapes(self) -> tuple[RunningShape, ...]:
        return self.inner.shapes()

    # -- hooks --

    def _start(self, job: Job) -> None:
        self.collector.take(job)

    def _close(self) -> None:
        self._unfollow()
        if self._collector is not None:  # None if the load was cancelled at its very end
            self._collector.close()
        if not self._lent:
            self.inner.close()

    def _layers(self) -> tuple[Layer, ...]:
        return self.inner.layers()

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {"BATCH_SIZE": lambda: self.size}

    def _optimal_number_of_infer_requests(self) -> int:
        """Enough requests to fill a batch for every stream, but no more than the caller sends."""
        most = self.config[PERFORMANCE_HINT_NUM_REQUESTS] or math.inf
        return int(min(most, self.size * self._slots()))

    def _execution_devices(self) -> list[str]:
        return execution_devices([self.inner])

    def works(self, up: Mapping[str, bool]) -> bool:
        return self.inner.works(up)

    # -- inside --

    def _slots(self) -> int:
        """How many batches the device runs at once."""
        return optimal_requests(self.inner)

    def _follow_streams(self) -> None:
        self.collector.set_slots(self._slots())

    def _timeout(self) -> float:
        return self.config[AUTO_BATCH_TIMEOUT] / 1000

    def _count(self, batch: Job, rows: int) -> None:
        if self._network_counters is not None:
            self._network_counters.observe_batch(rows)
            if batch.error is None:
                self.statistics.observe_run(batch, rows)
