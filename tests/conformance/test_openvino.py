"""OPENVINO does what every device must in a process of its own, which is the default. In the
server's process, it does what depends on the process: loads, requests, threads and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import pytest

from headrace.plugins.openvino import COMPILING, create_compiling
from headrace.plugins.openvino.backend.compiler import Compiler
from headrace.plugins.openvino.compiling import CompilingPlugin
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.start import start_openvino
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.device.services import Services
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.workers import Launch
from headrace.runtime.network.values import Value
from headrace.testing import DeviceConformance, networks
from headrace.testing.case import Case, parse
from headrace.testing.leaks import no_leaks
from headrace.testing.services import services
from headrace.testing.suite.concurrency import ConcurrencyConformance
from headrace.testing.suite.deadlines import DeadlineConformance
from headrace.testing.suite.fixtures import DeviceFixtures, Loader
from headrace.testing.suite.loading import LoadConformance
from headrace.testing.suite.profiling import ProfilingConformance
from headrace.testing.suite.requests import RequestConformance
from headrace.testing.suite.values import ValueConformance
from tests.support.borrowed_worker import worker_to_borrow

# A Gather takes any index there, and gives zero for one that is out of bounds.
_SUM = """fragile (float[N] x, float[M] y) => (float[K] z) { [sum] z = Add(x, y) }"""


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    """One for all tests: finding the devices takes half a second."""
    return start_openvino()


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    with worker_to_borrow() as launch:
        yield launch


class OpenVinoFixtures(DeviceFixtures):
    @pytest.fixture
    def services(self) -> Iterator[Services]:
        with no_leaks(), services([installed_plugins()["CPU"]]) as offered:
            yield offered

    fragile = Case("fragile", parse(_SUM), {"x": networks.random(4), "y": networks.random(4)})
    breaking: ClassVar[Mapping[str, Value]] = {"y": networks.random(3)}


class OpenVinoValues(OpenVinoFixtures, ValueConformance):
    def test_infinities_and_nans_go_through(self, load: Loader) -> None:
        """A Relu there makes a NaN zero; a sum leaves it alone."""
        case = networks.add()
        values = np.array([[np.inf, -np.inf, np.nan], [-0.0, 1e-40, 3e38]], np.float32)
        inputs = {"x": values, "y": np.zeros((2, 3), np.float32)}
        assert np.isnan(case.expected(inputs)["z"]).any()
        self.check(load(case), case, inputs)


class TestOpenVino(OpenVinoValues, DeviceConformance):
    @pytest.fixture
    def plugin(self, launch: Launch, services: Services) -> Iterator[Plugin]:
        stub = create_compiling("OPENVINO", services, {})
        apart = IsolatedPlugin("OPENVINO", services, {}, COMPILING, stub=stub, launch=launch)
        plugin = OpenVinoPlugin("OPENVINO", services, {}, apart)
        yield plugin
        plugin.close()


@pytest.mark.long
class TestOpenVinoInTheServersProcess(
    OpenVinoValues,
    LoadConformance,
    RequestConformance,
    DeadlineConformance,
    ConcurrencyConformance,
    ProfilingConformance,
):
    @pytest.fixture
    def plugin(self, services: Services, compiler: Compiler) -> Iterator[Plugin]:
        compiling = CompilingPlugin("OPENVINO", services, {}, lambda: compiler)
        plugin = OpenVinoPlugin("OPENVINO", services, {}, compiling)
        yield plugin
        plugin.close()
