"""Fixtures that the tests of the suite share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import numpy as np
import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.network.values import Value
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing import networks
from headrace.testing.case import Case
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.leaks import no_leaks
from headrace.testing.occupied import PATIENCE_SECONDS
from headrace.testing.services import services as real_services


class Loader:
    """Loads networks on the plugin. Skips the test if the device does not support them."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._loaded: list[ExecutableNetwork] = []

    def __call__(
        self,
        case: Case,
        config: Mapping[str, str] | None = None,
        options: NetworkOptions | None = None,
    ) -> ExecutableNetwork:
        network, options = case.network, options or NetworkOptions()
        unsupported = self._plugin.query_network(network, config or {}, options).unsupported
        if unsupported:
            layers = "; ".join(f"{layer.op_type}: {layer.reason}" for layer in unsupported)
            pytest.skip(f"the device does not support {layers}")
        return self.keep(self._plugin.load_network(Load(network, config or {}, options)))

    def keep(self, executable: ExecutableNetwork) -> ExecutableNetwork:
        """Closes a network at the end of the test."""
        self._loaded.append(executable)
        return executable

    def close(self) -> None:
        for executable in self._loaded:
            executable.close()


class DeviceFixtures:
    """Fixtures to override: `plugin`, `tolerance` if the device computes less exactly, and
    `fragile` with `breaking` if it takes any index.

    A device may lack operators, data types and extensions. Tests of these ask the device, and are
    skipped if it lacks them. Every device runs `Add`, `Gemm`, `MatMul`, `Relu`, `Softmax` and
    `ArgMax` in float32.
    """

    tolerance: ClassVar[float] = 1e-5
    """Relative error of float32 results."""
    fragile: ClassVar[Case] = networks.fragile()
    breaking: ClassVar[Mapping[str, Value]] = {"at": np.array([7], np.int64)}
    """Inputs of `fragile` that are wrong, which only the run finds out."""

    @pytest.fixture
    def services(self) -> Iterator[Services]:
        """The runtime's services. No thread and no file descriptor outlives them."""
        with no_leaks(), real_services() as offered:
            yield offered

    @pytest.fixture
    def plugin(self, services: Services) -> Plugin:
        """The device under test."""
        raise NotImplementedError("give the test class a fixture called 'plugin'")

    @pytest.fixture
    def load(self, plugin: Plugin) -> Iterator[Loader]:
        loader = Loader(plugin)
        yield loader
        loader.close()

    @pytest.fixture
    def new_request(self, load: Loader) -> Iterator[Callable[[ExecutableNetwork], InferRequest]]:
        """Makes requests that have ended before their network is closed."""
        requests: list[InferRequest] = []

        def make(network: ExecutableNetwork) -> InferRequest:
            requests.append(InferRequest(network))
            return requests[-1]

        yield make
        for request in requests:
            request.cancel()
            assert request.wait(PATIENCE_SECONDS), "a request has no outcome"

    @pytest.fixture
    def add(self, load: Loader) -> ExecutableNetwork:
        """A loaded network with one layer."""
        return load(networks.add())

    @pytest.fixture
    def adding(
        self, add: ExecutableNetwork, new_request: Callable[[ExecutableNetwork], InferRequest]
    ) -> InferRequest:
        """A request to that network."""
        return new_request(add)

    def check(
        self,
        network: ExecutableNetwork,
        case: Case,
        inputs: Mapping[str, Value] | None = None,
        tolerance: float | None = None,
    ) -> None:
        """Fails unless the network computes what the reference does."""
        request = InferRequest(network)
        outputs = request.infer(case.inputs if inputs is None else inputs)
        allowed = max(case.tolerance, self.tolerance if tolerance is None else tolerance)
        assert_same_outputs(outputs, case.expected(inputs), allowed)
