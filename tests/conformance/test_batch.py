"""A device whose requests run together, where they can, does what every device must."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.plugins import batch, cpu
from headrace.plugins.cpu.plugin import CpuPlugin
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition, UnsupportedLayers
from headrace.testing import DeviceConformance
from headrace.testing.leaks import no_leaks
from headrace.testing.services import services as real_services

MEMBERS = DeviceName.parse("BATCH:CPU(4)").members


class BatchedCpu(CpuPlugin):
    """CPU, with its requests joined as far as the network allows it."""

    def load_network(self, load: Load) -> ExecutableNetwork:
        plain = super().load_network(load)
        joins = self.services.devices.plugin("BATCH")
        options = replace(load.options, members=MEMBERS)
        own = {key: text for key, text in load.config.items() if key != "DEVICE_ID"}
        try:
            found = joins.load_network(replace(load, config=own, options=options, native=b""))
        except UnsupportedLayers:
            raise
        except FailedPrecondition:
            return plain
        plain.close()
        return found


class TestBatch(DeviceConformance):
    @pytest.fixture
    def services(self) -> Iterator[Services]:
        sources = (
            PluginSource("CPU", lambda: cpu.create_plugin),
            PluginSource("BATCH", lambda: batch.create_plugin),
        )
        with no_leaks(), real_services(sources) as offered:
            yield offered

    @pytest.fixture
    def plugin(self, services: Services) -> Plugin:
        return BatchedCpu("CPU", services, {})
