"""AUTO does what every device must, while it goes from one device to a better one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.plugins import auto, cpu, template
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.testing import DeviceConformance
from headrace.testing.leaks import no_leaks
from headrace.testing.services import services as real_services

SOURCES = (
    PluginSource("CPU", lambda: cpu.create_plugin),
    # Nobody knows its name, so it is taken for an accelerator and preferred.
    PluginSource("ACCELERATOR", lambda: template.create_plugin),
)


class TestAuto(DeviceConformance):
    @pytest.fixture
    def services(self) -> Iterator[Services]:
        with no_leaks(), real_services(SOURCES) as offered:
            yield offered

    @pytest.fixture
    def plugin(self, services: Services) -> Plugin:
        return auto.create_plugin("AUTO", services, {})
