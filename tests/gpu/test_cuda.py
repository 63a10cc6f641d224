"""CUDA does what every device must."""

from __future__ import annotations

import pytest

from headrace.plugins.cuda import create_plugin
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.testing import DeviceConformance
from headrace.testing.services import services


@pytest.fixture(scope="module", autouse=True)
def driver() -> None:
    """The driver opens its files once for a process, and keeps them."""
    with services() as offered:
        create_plugin("CUDA", offered, {}).close()


class TestCuda(DeviceConformance):
    @pytest.fixture
    def plugin(self, services: Services) -> Plugin:
        return create_plugin("CUDA", services, {})
