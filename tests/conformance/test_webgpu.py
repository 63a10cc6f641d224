"""WEBGPU, an execution provider from a library, does what every device must, in its process.

Without a GPU it computes on SwiftShader, which compiles a few kernels a second. So a kernel is
compiled once for all tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.workers import Launch
from headrace.testing import DeviceConformance, networks
from headrace.testing.suite.fixtures import Loader
from tests.support import swiftshader
from tests.support.borrowed_worker import worker_to_borrow

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(swiftshader.lacking()), reason=swiftshader.lacking()),
]


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    with pytest.MonkeyPatch.context() as changed:
        for name, value in swiftshader.ENVIRONMENT.items():
            changed.setitem(os.environ, name, value)
        with worker_to_borrow() as launch:
            yield launch


class TestWebGpu(DeviceConformance):
    @pytest.fixture
    def plugin(self, launch: Launch, services: Services) -> Iterator[Plugin]:
        path = "tests.support.lasting_provider:create_plugin"
        config = {"PROVIDER_PACKAGE": swiftshader.PACKAGE}
        plugin = IsolatedPlugin("WEBGPU", services, config, path, launch=launch)
        yield plugin
        plugin.close()

    def test_infinities_and_nans_go_through(self, load: Loader) -> None:
        """But for NaN: WebGPU leaves to the device what its kernels make of it."""
        case = networks.relu_relu()
        inputs = {
            "x": np.array([0, -0.0, np.inf, -np.inf], np.float32),
            "y": np.zeros(4, np.float32),
        }
        self.check(load(case), case, inputs)
