"""CPU in a process of its own does what every device must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.workers import Launch
from headrace.testing import DeviceConformance
from tests.support.borrowed_worker import worker_to_borrow


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    with worker_to_borrow() as launch:
        yield launch


class TestIsolatedCpu(DeviceConformance):
    @pytest.fixture
    def plugin(self, launch: Launch, services: Services) -> Iterator[Plugin]:
        path = "headrace.plugins.cpu:create_plugin"
        plugin = IsolatedPlugin("CPU", services, {}, path, launch=launch)
        yield plugin
        plugin.close()
