"""OPENCL does what every device must, in the process that it always lives in.

What PoCL compiles takes a third of a second a kernel at first, and each shape has kernels of its
own. So the whole of it is a long test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import Unavailable
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.workers import Launch
from headrace.testing import DeviceConformance
from headrace.testing.suite.deadlines import DeadlineConformance
from headrace.testing.suite.fixtures import DeviceFixtures
from headrace.testing.suite.loading import LoadConformance
from headrace.testing.suite.requests import RequestConformance
from tests.support.borrowed_worker import worker_to_borrow


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    with worker_to_borrow() as launch:
        yield launch


class OpenClFixtures(DeviceFixtures):
    @pytest.fixture
    def plugin(self, launch: Launch, services: Services) -> Iterator[Plugin]:
        path = "headrace.plugins.opencl:create_plugin"
        try:
            plugin = IsolatedPlugin("OPENCL", services, {}, path, launch=launch)
        except Unavailable as error:
            pytest.skip(str(error))
        yield plugin
        plugin.close()


class TestOpenClBriefly(OpenClFixtures, LoadConformance, RequestConformance, DeadlineConformance):
    pass


@pytest.mark.long
class TestOpenCl(OpenClFixtures, DeviceConformance):
    pass
