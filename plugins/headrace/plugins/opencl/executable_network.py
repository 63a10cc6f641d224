"""A network on the device, run by the backend's thread."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from headrace.plugins.opencl.backend.failures import run_failure
from headrace.plugins.opencl.backend.thread import BackendThread
from headrace.plugins.opencl.running.session import OpenClSession
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.job import Job, LayerProfile
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.network.index_bounds import IndexBounds
from headrace.runtime.network.network import Network


class OpenClNetwork(ExecutableNetwork):
    """Exports nothing native: tinygrad's export would have to be unpickled, and its kernel cache on
    disk makes a new compilation quick.

    Args:
        session: the network in the backend.
        bounds: the bounds of indices that arrive as inputs.
    """

    def __init__(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        backend: BackendThread,
        session: OpenClSession,
        bounds: IndexBounds,
    ) -> None:
        super().__init__(network, config, executor, streams=1)
        self._backend = backend
        self._session: OpenClSession | None = session
        self._bounds = bounds
        self._origins = {layer.name: layer.origins for layer in network.layers}

    def _preprocess(self, job: Job) -> None:
        job.backend = {port.name: job.inputs.get(port.name) for port in self.inputs}
        self._bounds.check(job.backend)

    def _infer(self, job: Job) -> None:
        session, layers = self._session, job.layers
        assert session is not None, "a job after close"

        def timed(node: ir.Node, seconds: float) -> None:
            name = node.name or ""
            origins = self._origins.get(name, ())
            layers.append(
                LayerProfile(name, node.op_type, self.place.device, "tinygrad", seconds, origins)
            )

        timer = timed if job.profile else None
        try:
            job.backend = self._backend.infer(
                lambda: session.run(job.backend, job.token, timer), job.token
            )
        except Exception as error:
            failure = run_failure(error)
            if failure is error:
                raise
            raise failure from error

    def _postprocess(self, job: Job) -> None:
        outputs: dict[str, Any] = job.backend
        job.outputs = {name: outputs[name] for name in job.output_names}

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._backend.run(session.close)
            self._backend.forget()
