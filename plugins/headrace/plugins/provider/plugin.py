"""The device: what its library offers, and how it compiles a network for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import partial
from threading import Lock
from typing import Final

import numpy as np
import onnx
import onnxruntime

from headrace.plugins.cpu.accelerator_plugin import AcceleratorPlugin
from headrace.plugins.cpu.backend import failures, session
from headrace.plugins.cpu.backend.compatibility import identity, tiny
from headrace.plugins.cpu.backend.session import (
    OnnxRuntimeSession,
    Provider,
    SessionSettings,
)
from headrace.plugins.cpu.backend.tensors import TensorConversion
from headrace.plugins.cpu.running.checked_runs import CheckedRuns
from headrace.plugins.cpu.running.runs import HostRuns, Runs
from headrace.plugins.cpu.session_plugin import Open
from headrace.plugins.cpu.support import OnnxRuntimeTrials
from headrace.plugins.provider import config as settings
from headrace.plugins.provider.backend import library
from headrace.plugins.provider.claims.trial import why_not
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import DEVICE_ID
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.services import Services
from headrace.runtime.errors import HeadraceError, Unavailable
from headrace.runtime.network.index_bounds import IndexBounds
from headrace.runtime.network.network import Network

_log = logging.getLogger(__name__)

_TYPES: Final = {"FP32": "float", "FP16": "float16", "BF16": "bfloat16", "FP64": "double"}


class ProviderPlugin(AcceleratorPlugin):
    """Every device that the provider offers. DEVICE_ID is its place in the list, from 0.

    One request runs at a time. A layer is supported if ONNX Runtime assigns it to the provider, and
    the provider computes what processors do.
    """

    schema = settings.SCHEMA

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        given = self.schema.resolve(config)
        path, told = given[settings.PROVIDER_LIBRARY], ""
        if package := given[settings.PROVIDER_PACKAGE]:
            path, told = library.from_package(package)
        offers = library.offered(path, given[settings.EXECUTION_PROVIDER] or told, name)
        options = settings.options(given)
        self._offers = {str(number): offer for number, offer in enumerate(offers)}
        # Sessions of one process share a queue of the GPU, which providers do not guard: of two
        # requests that WebGPU runs at the same time, one fails.
        turn = Lock()
        self._providers = {
            number: Provider(offer.ep_name, options, device=offer, turn=turn)
            for number, offer in self._offers.items()
        }
        self._trials_of = {
            number: OnnxRuntimeTrials(provider, check=partial(why_not, provider=provider))
            if given[settings.TRY_LAYERS]
            else OnnxRuntimeTrials(provider)
            for number, provider in self._providers.items()
        }
        first = offers[0]
        self.full_name, self.architecture = library.full_name(first), first.device.type.name
        version = first.ep_metadata.get("version", "")
        self.backend_version = (
            f"ONNX Runtime {onnxruntime.__version__}, {first.ep_name} {version}".rstrip()
        )
        self._held: dict[str, OnnxRuntimeSession] = {}
        self._used("0")
        self.capabilities = self._computes("0")
        super().__init__(name, services, config)

    # -- what it says of itself --

    def _device_ids(self) -> list[str]:
        return list(self._offers)

    def _default_streams(self) -> int:
        return 1

    def _metrics(self) -> Mapping[str, Metric]:
        return {
            "FULL_DEVICE_NAME": lambda options: library.full_name(self._offers[self._id(options)]),
            "DEVICE_TYPE": lambda options: library.device_type(self._offers[self._id(options)]),
            "DEVICE_ARCHITECTURE": lambda options: self._offers[self._id(options)].device.type.name,
            "OPTIMIZATION_CAPABILITIES": lambda options: list(self._computes(self._id(options))),
        }

    def _id(self, options: Mapping[str, str]) -> str:
        return options.get(DEVICE_ID.name) or self.device_id(self.config)

    # -- networks --

    def _provider(self, config: Configuration) -> Provider:
        return self._used(self.device_id(config))

    def _provider_name(self) -> str:
        return self._providers["0"].name

    def _at_once(self, config: Configuration) -> int:
        return 1

    def _runs(
        self, network: Network, config: Configuration, conversion: TensorConversion, opened: Open
    ) -> Runs:
        return CheckedRuns(
            IndexBounds(network.model),
            HostRuns(opened(self._provider(config)), conversion),
            lambda: HostRuns(opened(Provider()), conversion),
            partial(self._end_if_lost, self.device_id(config)),
        )

    def _close(self) -> None:
        self._held.clear()

    # -- inside --

    def _used(self, device_id: str) -> Provider:
        """The provider on a device. The smallest session shows that it works, and stays open: with
        the last session, a provider may drop all kernels that it has compiled.

        Raises:
            Unavailable: the provider does not work with the device.
        """
        provider = self._providers[device_id]
        if device_id not in self._held:
            try:
                self._held[device_id] = session.open_bytes(
                    identity(8, {"": 17}), provider, SessionSettings()
                )
            except HeadraceError as error:
                name = library.full_name(self._offers[device_id])
                raise Unavailable(
                    f"{name} does not work: {error.message}; see in the provider's documents "
                    f"whether it needs {settings.PROVIDER_OPTIONS.name}"
                ) from error
        return provider

    def _end_if_lost(self, device_id: str) -> None:
        """Ends the device's process if the device does nothing any more: its driver has restarted,
        or it is gone. A provider does not open it anew. The server starts another process, which
        looks for devices again."""
        try:
            self._held[device_id].run(["y"], {"x": np.zeros(1, np.float32)}, session.run_options())
        except Exception as error:  # noqa: BLE001 - the binding's errors share no class
            _log.error("%s.%s is lost: %s", self.name, device_id, failures.readable(error))
            if self.services.isolated:
                os._exit(1)

    def _computes(self, device_id: str) -> tuple[str, ...]:
        """OPTIMIZATION_CAPABILITIES: the types that the device adds."""
        self._used(device_id)
        reason = self._trials_of[device_id].reason
        return tuple(word for word, dtype in _TYPES.items() if reason(_sum(dtype)) is None)


def _sum(dtype: str) -> onnx.ModelProto:
    text = f"({dtype}[2] x, {dtype}[2] y) => ({dtype}[2] z) {{ z = Add(x, y) }}"
    return onnx.load_from_string(tiny(text, 8, {"": 17}))
