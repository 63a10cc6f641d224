"""A device of a provider that leaves what it has compiled in its process.

Tests that borrow one process make a device each. With the last session of a process, WebGPU drops
its kernels, of which SwiftShader compiles a few a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.plugins.cpu.backend.session import OnnxRuntimeSession
from headrace.plugins.provider.plugin import ProviderPlugin
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.services import Services

_OPEN: Final[dict[str, OnnxRuntimeSession]] = {}


class LastingProvider(ProviderPlugin):
    def _close(self) -> None:
        """Leaves the smallest session of each device open until the next device has its own."""
        _OPEN.update(self._held)


@plugin_api(1, isolated="by default")
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> LastingProvider:
    return LastingProvider(name, services, config)
