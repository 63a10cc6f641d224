"""The device: its GPUs, what they can do, and how it compiles a network for one of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.plugins.cpu.accelerator_plugin import AcceleratorPlugin
from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.backend.compatibility import identity
from headrace.plugins.cpu.backend.custom_ops import libraries
from headrace.plugins.cpu.backend.session import Provider, SessionSettings
from headrace.plugins.cpu.backend.tensors import TensorConversion
from headrace.plugins.cpu.running.checked_runs import CheckedRuns
from headrace.plugins.cpu.running.runs import HostRuns, Runs
from headrace.plugins.cpu.session_plugin import Open
from headrace.plugins.cpu.support import OnnxRuntimeTrials
from headrace.plugins.cuda import config as settings
from headrace.plugins.cuda.backend.gpu import Gpu
from headrace.plugins.cuda.backend.machine import PROVIDER, Machine
from headrace.plugins.cuda.running.bound_runs import (
    BoundRuns,
    RecordedLane,
    StagedLane,
    bindable,
    memory_of,
    not_recordable,
)
from headrace.runtime.config.schema import Configuration, Range
from headrace.runtime.config.standard_keys import DEVICE_ID
from headrace.runtime.device.compiled_plugin import Support
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.runtime.network.index_bounds import IndexBounds
from headrace.runtime.network.network import Network


def open_smallest(provider: Provider = Provider(PROVIDER)) -> None:  # noqa: B008 - frozen
    """Opens a session of the smallest network, on the first GPU unless the provider names one.

    Raises:
        HeadraceError: the provider does not work.
    """
    session.open_bytes(identity(8, {"": 7}), provider, SessionSettings())


class CudaPlugin(AcceleratorPlugin):
    """Every GPU that CUDA shows. DEVICE_ID is CUDA's number for a GPU.

    The device refuses layers that the provider has no kernel for. ONNX Runtime itself prefers to
    run layers that compute shapes on the processor, and they run there.

    Args:
        machine: the machine that has the GPUs.
    """

    schema = settings.SCHEMA

    def __init__(
        self, name: str, services: Services, config: Mapping[str, str], machine: Machine
    ) -> None:
        self._machine = machine
        first = machine.gpus["0"]
        self.full_name, self.architecture = first.name, first.architecture
        self.capabilities = first.capabilities
        self._working: set[str] = set()
        super().__init__(name, services, config)
        defaults, added = self.schema.resolve(), libraries(self.config)
        self._trials_of = {
            gpu: OnnxRuntimeTrials(replace(self._cuda(defaults, gpu), libraries=added))
            for gpu in machine.gpus
        }

    # -- what it says of itself --

    def _device_ids(self) -> list[str]:
        return list(self._machine.gpus)

    def _default_streams(self) -> int:
        return settings.auto_streams(self.config)

    def _set_config(self, config: Configuration) -> None:
        self._check_provider(config)

    def _metrics(self) -> Mapping[str, Metric]:
        taken = self._machine.management.taken_bytes
        return {
            "FULL_DEVICE_NAME": lambda options: self._gpu(options).name,
            "DEVICE_TYPE": lambda _: "DISCRETE",
            "DEVICE_UUID": lambda options: self._gpu(options).uuid,
            "DEVICE_ARCHITECTURE": lambda options: self._gpu(options).architecture,
            "OPTIMIZATION_CAPABILITIES": lambda options: list(self._gpu(options).capabilities),
            "RANGE_FOR_STREAMS": lambda _: Range(1, settings.MOST_STREAMS),
            "GPU_DEVICE_TOTAL_MEM_SIZE": lambda options: self._gpu(options).memory_bytes,
            "GPU_DEVICE_USED_MEM_SIZE": lambda options: taken(self._gpu(options).uuid),
        }

    def _gpu(self, options: Mapping[str, str]) -> Gpu:
        return self._machine.gpus[options.get(DEVICE_ID.name) or self.device_id(self.config)]

    def _memory_bytes(self, device_id: str) -> int:
        """The memory that the process takes on the GPU, for its networks and for CUDA itself. If
        the driver does not tell, the memory of the networks' weights."""
        uuid = self._machine.gpus[device_id].uuid
        taken = self._machine.management.taken_by(uuid, os.getpid())
        return super()._memory_bytes(device_id) if taken is None else taken

    # -- networks --

    def _provider(self, config: Configuration) -> Provider:
        self._check_provider(config)
        return settings.provider(config, self.device_id(config))

    def _provider_name(self) -> str:
        return PROVIDER

    def _support(self, network: Network, config: Configuration) -> Support:
        """Checks first that the provider works with the GPU. Otherwise the provider would look as
        if it had no kernels.

        Raises:
            Unavailable: the provider does not work with the GPU.
        """
        device_id = self.device_id(config)
        if device_id not in self._working:
            open_smallest(self._cuda(self.schema.resolve(), device_id))
            self._working.add(device_id)
        return super()._support(network, config)

    def _at_once(self, config: Configuration) -> int:
        return min(settings.streams(config), self.streams())

    def _runs(
        self, network: Network, config: Configuration, conversion: TensorConversion, opened: Open
    ) -> Runs:
        device_id = self.device_id(config)
        memory, at_once = self._machine.pinned(int(device_id)), self._at_once(config)
        runs: Runs
        if config[settings.CUDA_GRAPH]:
            _check_recordable(network)
            recording, where = self._cuda(config, device_id, graph=True), self._where(device_id)
            runs = BoundRuns(
                lambda: RecordedLane(opened(recording), network, where, memory), at_once
            )
        else:
            shared = opened(self._provider(config))
            if bindable(network):
                runs = BoundRuns(lambda: StagedLane(shared, network, memory), at_once)
            else:
                runs = HostRuns(shared, conversion)
        return CheckedRuns(IndexBounds(network.model), runs)

    def _close(self) -> None:
        self._machine.management.close()

    # -- a test overrides these to use processors instead of GPUs --

    def _cuda(self, config: Configuration, device_id: str, *, graph: bool = False) -> Provider:
        return settings.cuda(config, device_id, graph=graph)

    def _where(self, device_id: str) -> Any:
        return memory_of(int(device_id))

    # -- inside --

    def _check_provider(self, config: Configuration) -> None:
        if config[settings.EXECUTION_PROVIDER] == "CUDA":
            return
        missing = self._machine.tensorrt()
        field = f"config['{settings.EXECUTION_PROVIDER.name}']"
        if missing:
            raise FailedPrecondition(f"TensorRT cannot be used: {missing}", field=field)
        if config[settings.CUDA_GRAPH]:
            raise InvalidArgument(
                f"{settings.CUDA_GRAPH.name} is for {settings.EXECUTION_PROVIDER.name}=CUDA",
                field=field,
            )


def _check_recordable(network: Network) -> None:
    unfit = not_recordable(network)
    if unfit:
        raise InvalidArgument(
            f"a recorded run needs tensors of numbers with fixed shapes, which "
            f"{', '.join(unfit)} are not",
            field=f"config['{settings.CUDA_GRAPH.name}']",
        )
