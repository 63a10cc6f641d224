"""A network on the device: one compiled model, and an infer request for each stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from headrace.plugins.openvino import profiling
from headrace.plugins.openvino.requests import Compiled, Request
from headrace.runtime.config import Configuration, ParameterValue
from headrace.runtime.executable_network import ExecutableNetwork
from headrace.runtime.job import Job
from headrace.runtime.network import Layer, Network
from headrace.runtime.streams_executor import StreamsExecutor


class RequestNetwork(ExecutableNetwork):
    """Runs its jobs in infer requests that stay. A stream takes an idle one, of which there are as
    many as streams; the deque's own operations are atomic.

    OpenVINO computes on threads of its own, for which the stream's thread waits. That is not
    `inline_safe`: the thread's processor time says nothing of the run's length.

    Args:
        device: OpenVINO's name of it.
    """

    def __init__(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        streams: int,
        compiled: Compiled,
        device: str,
    ) -> None:
        super().__init__(network, config, executor, streams=streams)
        self._compiled: Compiled | None = compiled
        self._device = device
        self._requests = deque(Request(compiled, number) for number in range(streams))
        self._graph = profiling.graph(compiled.model.get_runtime_model(), network)

    def _infer(self, job: Job) -> None:
        request = self._requests.pop()
        try:
            job.outputs = request.run(job)
            if job.profile:
                job.layers = profiling.layers(request.profile(), self._graph, self.place.device)
        finally:
            self._requests.append(request)

    def _export(self) -> bytes:
        """OpenVINO's own bytes; none of a network with loops, whose checkpoints are code."""
        compiled = self._compiled
        if compiled is None or compiled.checkpoints is not None:
            return b""
        return bytes(compiled.model.export_model().getvalue())

    def _layers(self) -> tuple[Layer, ...]:
        return tuple(self._graph.values())

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {"EXECUTION_DEVICES": lambda: [f"{self.place.device} ({self._device})"]}

    def _close(self) -> None:
        self._requests.clear()
        self._compiled = None
