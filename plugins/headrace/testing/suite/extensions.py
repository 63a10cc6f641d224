"""Extensions: operators given as ONNX functions, on a device that takes them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import Unimplemented, UnsupportedLayers
from headrace.testing import networks
from headrace.testing.case import Case
from headrace.testing.suite.fixtures import DeviceFixtures, Loader


def without_function() -> tuple[Case, list[ir.Function]]:
    """A network that calls a function which it does not hold, and the function."""
    case = networks.local_function()
    functions = list(case.network.model.functions.values())
    stripped = networks.local_function()
    del stripped.model.functions[:]
    return stripped, functions


class ExtensionConformance(DeviceFixtures):
    def extend(self, plugin: Plugin, functions: list[ir.Function]) -> None:
        """Gives the device the functions, or skips the test if it takes none."""
        try:
            plugin.add_extension(functions)
        except Unimplemented as error:
            pytest.skip(str(error))

    def test_a_call_is_unsupported_before_its_function_is_there(self, plugin: Plugin) -> None:
        case, _ = without_function()
        with pytest.raises(UnsupportedLayers) as caught:
            plugin.load_network(Load(case.network))
        assert [layer.layer for layer in caught.value.layers] == ["call"]

    def test_a_network_may_use_the_function_once_it_is_there(
        self, plugin: Plugin, load: Loader
    ) -> None:
        case, functions = without_function()
        self.extend(plugin, functions)
        self.check(load(case), networks.local_function())

    def test_a_function_of_the_network_wins_over_the_extension(
        self, plugin: Plugin, load: Loader
    ) -> None:
        other = networks.local_function("Mul(v, v)")
        self.extend(plugin, list(other.network.model.functions.values()))
        case = networks.local_function()
        self.check(load(case), case)
