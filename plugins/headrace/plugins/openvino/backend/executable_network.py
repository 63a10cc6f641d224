"""A network that OpenVINO has compiled."""

from __future__ import annotations

import threading
from typing import Final

from headrace.plugins.openvino.backend.compilation import Compilation
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.network.graph import RunningShape
from headrace.runtime.network.network import Layer, Network
from headrace.runtime.system.process_memory import proportional_bytes

_MARKED_RUNS: Final = 32
"""The first runs, among which those are that are compared with CPU's answers: memory that they do
not write is marked, so that an answer with it differs."""


class CompiledNetwork(ExecutableNetwork):
    """Thread-safe: `_lock` guards `_runs`. It keeps no weights, because OpenVINO has its own.

    Args:
        network: transformed, and with known sizes.
        compilation: of this network.
        taken_bytes: by how much the compile has let the process grow.

    Attributes:
        taken_bytes: by how much the compile and the first run have.
    """

    def __init__(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        streams: int,
        compilation: Compilation,
        taken_bytes: int,
    ) -> None:
        super().__init__(network, config, executor, streams=streams)
        self.forget_network()
        self._compilation = compilation
        self.taken_bytes = taken_bytes
        self._lock = threading.Lock()
        self._runs = 0

    def _infer(self, job: Job) -> None:
        with self._lock:
            self._runs += 1
            number = self._runs
        before = proportional_bytes() if number == 1 else 0
        job.outputs = self._compilation.run(job, self.place.device, marked=number <= _MARKED_RUNS)
        if number == 1:  # it takes memory, too
            self.taken_bytes += max(0, proportional_bytes() - before)

    def runs_on(self, device: str) -> bool:
        """Whether it is open, and on this device."""
        return not self._closed and hasattr(self, "place") and self.place.device == device

    def shapes(self) -> tuple[RunningShape, ...]:
        return (RunningShape("", self.place.device, "", self.taken_bytes),)

    def _layers(self) -> tuple[Layer, ...]:
        return tuple(self._compilation.graph.values())

    def _export(self) -> bytes:
        return self._compilation.export()

    def _close(self) -> None:
        del self._compilation
