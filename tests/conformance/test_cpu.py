"""CPU does what every device must."""

from __future__ import annotations

import pytest

from headrace.plugins.cpu import create_plugin
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.testing import DeviceConformance


class TestCpu(DeviceConformance):
    @pytest.fixture
    def plugin(self, services: Services) -> Plugin:
        return create_plugin("CPU", services, {})
