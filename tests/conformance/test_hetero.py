"""HETERO does what every device must, however it splits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.plugins import cpu, hetero, template
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.testing import DeviceConformance
from headrace.testing.leaks import no_leaks
from headrace.testing.services import services as real_services

SOURCES = (
    PluginSource("CPU", lambda: cpu.create_plugin),
    PluginSource("TEMPLATE", lambda: template.create_plugin),
)


class TestHetero(DeviceConformance):
    @pytest.fixture
    def services(self) -> Iterator[Services]:
        with no_leaks(), real_services(SOURCES) as offered:
            yield offered

    @pytest.fixture
    def plugin(self, services: Services) -> Plugin:
        return hetero.create_plugin("HETERO", services, {"TARGET_FALLBACK": "TEMPLATE,CPU"})
