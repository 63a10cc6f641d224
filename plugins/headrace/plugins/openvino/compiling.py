"""The device that compiles networks with known sizes, and runs them: in a process of its own unless
the operator wants it in the server's. OPENVINO stands in front of it, in the server, and loads each
tuple of shapes as a network of this device.

Nothing here imports OpenVINO before it is needed. See `start`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from headrace.plugins.openvino import config as settings
from headrace.plugins.openvino.device import OpenVinoDevice
from headrace.plugins.openvino.start import FirstUse, installed_version, start_openvino
from headrace.runtime.config import hints
from headrace.runtime.config.schema import Configuration, Range
from headrace.runtime.config.standard_keys import DEVICE_ID, INFERENCE_PRECISION_HINT
from headrace.runtime.device.cached_load import MakeNetwork
from headrace.runtime.device.compiled_plugin import Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import LoadResult
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.system.allocator import release_memory
from headrace.runtime.system.process_memory import proportional_bytes

if TYPE_CHECKING:
    from headrace.plugins.openvino.backend.compilation import Compilation
    from headrace.plugins.openvino.backend.compiler import Compiler
    from headrace.plugins.openvino.backend.core import Runtime
    from headrace.plugins.openvino.backend.executable_network import CompiledNetwork


class CompilingPlugin(OpenVinoDevice):
    """Every device that OpenVINO finds. DEVICE_ID is OpenVINO's name for a device, for example
    ``GPU.0``.

    Any method that needs the library starts it. If the library does not start, the method raises
    Unavailable, and the device is down from then on.

    Thread-safe: `_lock_of_networks` guards `_networks`.

    Args:
        start: starts the library; raises Unavailable.

    Raises:
        Unavailable: the library is not installed; or `config` has a value that only the library can
            check, and the library does not start.
    """

    def __init__(
        self,
        name: str,
        services: Services,
        config: Mapping[str, str],
        start: Callable[[], Compiler] = start_openvino,
    ) -> None:
        self.backend_version = f"OpenVINO {installed_version()}"
        self._openvino = FirstUse(
            start,
            lambda compiler: self._places.announce(compiler.runtime.devices),
            lambda reason: services.states.set(name, DeviceState.DOWN, reason),
        )
        self._lock_of_networks = threading.Lock()
        self._networks: WeakSet[CompiledNetwork] = WeakSet()
        super().__init__(name, services, config)

    # -- description of the device --

    @property
    def full_name(self) -> str:  # type: ignore[override]  # of the default device
        return self._runtime.full_name(self._runtime.devices[0])

    @property
    def architecture(self) -> str:  # type: ignore[override]  # of the default device
        return self._runtime.architecture(self._runtime.devices[0])

    @property
    def capabilities(self) -> tuple[str, ...]:  # type: ignore[override]  # of the default device
        return self._runtime.capabilities(self._runtime.devices[0])

    @property
    def _runtime(self) -> Runtime:
        return self._openvino.get().runtime

    def announce(self) -> None:
        """Announces the plugin's devices if they are known. Until then they are shown as one."""
        if self._openvino.made() is not None:
            super().announce()

    def _device_ids(self) -> list[str]:
        return self._runtime.devices

    def _default_streams(self) -> int:
        return hints.auto_streams(self.config)

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Does the same as `Device.set_config`. Starts OpenVINO first if only OpenVINO can check a
        value. The start comes before the device's lock is taken, because a failure calls
        listeners."""
        if any(changes.get(key.name) for key in (DEVICE_ID, INFERENCE_PRECISION_HINT)):
            self._openvino.get()
        super().set_config(changes)

    def _set_config(self, config: Configuration) -> None:
        if config[INFERENCE_PRECISION_HINT]:
            self._precision(config, self.device_id(config))

    def _metrics(self) -> Mapping[str, Metric]:
        return {
            "FULL_DEVICE_NAME": lambda options: self._runtime.full_name(self._named(options)),
            "DEVICE_TYPE": lambda options: self._runtime.device_type(self._named(options)),
            "DEVICE_ARCHITECTURE": lambda options: self._runtime.architecture(self._named(options)),
            settings.CAPABILITIES: lambda options: list(
                self._runtime.capabilities(self._named(options))
            ),
            "RANGE_FOR_STREAMS": lambda options: Range(
                *self._runtime.stream_range(self._named(options))
            ),
        }

    def _named(self, options: Mapping[str, str]) -> str:
        return options.get(DEVICE_ID.name) or self.device_id(self.config)

    def _memory_bytes(self, device_id: str) -> int:
        """What the compilations were measured to take."""
        device = f"{self.name}.{device_id}"
        with self._lock_of_networks:
            networks = [*self._networks]
        return sum(each.taken_bytes for each in networks if each.runs_on(device))

    # -- networks --

    def _support(self, network: Network, config: Configuration) -> Support:
        """OPENVINO has asked which layers are claimed; the rest is found by a compile."""
        return lambda _: None

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        compiler, device = self._openvino.get(), self.device_id(config)
        properties = self._properties(config, device)
        return self._measured(
            network, config, partial(compiler.compile, network, device, properties, token)
        )

    def _import(
        self, network: Network, native: bytes, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        compiler, device = self._openvino.get(), self.device_id(config)
        properties = self._properties(config, device)
        return self._measured(
            network, config, partial(compiler.restore, network, native, device, properties)
        )

    def _restore(
        self, native: bytes, network: MakeNetwork, config: Configuration, token: CancelToken
    ) -> LoadResult:
        """OPENVINO says what happens with bytes that the backend does not accept."""
        return LoadResult(self._reopen(native, network, config, token), restored=True)

    # -- inside --

    def _measured(
        self, network: Network, config: Configuration, make: Callable[[], Compilation]
    ) -> CompiledNetwork:
        from headrace.plugins.openvino.backend.executable_network import CompiledNetwork

        release_memory()  # otherwise it would seem as if the compile gave it back
        before = proportional_bytes()
        compilation = make()
        release_memory()  # which the compile used
        taken_bytes = max(0, proportional_bytes() - before)
        made = CompiledNetwork(
            network,
            config,
            self.executor(config),
            self._at_once(config),
            compilation,
            taken_bytes,
        )
        with self._lock_of_networks:
            self._networks.add(made)
        return made

    def _properties(self, config: Configuration, device: str) -> dict[str, object]:
        precision = self._precision(config, device)
        settable = self._runtime.settable(device)
        return settings.properties(config, precision, settable, self._at_once(config))

    def _precision(self, config: Configuration, device: str) -> str:
        return settings.precision(config, device, self._runtime.capabilities(device))

    def _at_once(self, config: Configuration) -> int:
        return min(hints.streams(config), self.streams())
