"""The device: what it is called, what it can do, and how a network is made for it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import onnx_ir as ir
import onnxruntime

from headrace.plugins.cpu import limits, session
from headrace.plugins.cpu.compatibility import Compatibility
from headrace.plugins.cpu.config import SCHEMA
from headrace.plugins.cpu.executable_network import SessionNetwork
from headrace.plugins.cpu.profiling import Profiler
from headrace.plugins.cpu.session import Provider, Settings
from headrace.plugins.cpu.support import LayerSupport, Trials
from headrace.plugins.cpu.tensors import Conversion
from headrace.plugins.cpu.transformations import TRANSFORMATIONS
from headrace.runtime import hints
from headrace.runtime.allocator import release_memory
from headrace.runtime.cancel import CancelToken
from headrace.runtime.config import Configuration, Range
from headrace.runtime.device_metrics import Metric
from headrace.runtime.errors import HeadraceError, UnsupportedLayer, UnsupportedLayers
from headrace.runtime.network import Network
from headrace.runtime.plugin import Plugin, Support
from headrace.runtime.processors import usable_processors
from headrace.runtime.services import Services
from headrace.runtime.transform import Transformation


class CpuPlugin(Plugin):
    """ONNX Runtime with one execution provider, here the one for processors.

    A device of another provider is a sub-class that names it, its ids and its capabilities.
    """

    schema = SCHEMA
    backend_version = f"ONNX Runtime {onnxruntime.__version__}"
    # The provider has no float16 arithmetic: it casts around every layer, which one cast of the
    # whole network does better.
    capabilities = ("FP32", "FP64", "INT8")
    compile_checks_support = True
    provider: ClassVar[Provider] = Provider()

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self._compatibility = Compatibility(name, self._loads)
        self._trials = Trials(self.provider)
        self.full_name = processor_name()
        super().__init__(name, services, config)

    def _device_ids(self) -> list[str]:
        return ["0"]

    def _default_streams(self) -> int:
        return hints.auto_streams(self.config)

    def _metrics(self) -> Mapping[str, Metric]:
        return {"RANGE_FOR_STREAMS": lambda _: Range(1, usable_processors())}

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Takes any: ONNX Runtime inlines local functions."""

    def _transformations(self, config: Configuration) -> Sequence[Transformation]:
        return TRANSFORMATIONS

    def _support(
        self,
        network: Network,
        config: Configuration,
    ) -> Support:
        return LayerSupport(
            network.model,
            self._compatibility,
            self._trials,
            lambda model: session.open_model(
                self._compatibility.lowered(model), self.provider, Settings()
            ),
        )

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> SessionNetwork:
        wrong = [
            UnsupportedLayer(node.name or "", node.op_type, reason)
            for node in network.nodes()
            if (reason := limits.reason(node)) is not None
        ]
        if wrong:
            raise UnsupportedLayers(self.name, wrong)
        readable = self._compatibility.lowered(network.model)
        conversion = Conversion(network.inputs, network.outputs)
        share = min(hints.streams(config), self.streams())
        threads = hints.threads_of_a_run(config, share)
        backend = session.open_model(readable, self.provider, Settings(threads=threads), token)
        release_memory()  # of a load of 310 MB, 200 are left over by then; it takes 5 ms
        profiler = Profiler(network.model, readable, self.provider, threads)
        executor, shown = self.executor(config), hints.chosen(config, share)
        return SessionNetwork(network, shown, executor, share, backend, conversion, profiler)

    def _loads(self, model: bytes) -> bool:
        try:
            session.open_bytes(model, self.provider, Settings())
        except HeadraceError:
            return False
        return True


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name, or its architecture where the system does not tell."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
