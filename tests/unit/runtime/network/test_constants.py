"""The tensors of constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from headrace.plugins import cpu
from headrace.runtime.device.load import Load
from headrace.runtime.network.constants import const_tensor
from headrace.testing import networks
from headrace.testing.case import Case, network_of
from headrace.testing.services import services


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the protocols of onnx-ir that objects are compared with."""
    kind: Any = type(ir.TensorProtocol)
    usual, found = kind.__instancecheck__, []

    def noted(protocol: Any, each: object) -> bool:
        if protocol.__module__.startswith("onnx_ir") and protocol.__name__.endswith("Protocol"):
            found.append(protocol.__name__)
        return bool(usual(protocol, each))

    monkeypatch.setattr(kind, "__instancecheck__", noted)
    return found


@pytest.mark.parametrize("case", [networks.mlp(), networks.transformer(), networks.branch()])
def test_a_load_looks_for_no_members_of_protocols(case: Case, compared: list[str]) -> None:
    with services() as offered:
        plugin = cpu.create_plugin("CPU", offered, {})
        plugin.load_network(Load(network_of(case.model), {})).close()
    assert not compared


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value_float": 1.5}, np.float32(1.5)),
        ({"value_floats": [1.5, 2.0]}, np.array([1.5, 2.0], np.float32)),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
        ({"value_string": "a"}, np.array(b"a", object)),
        ({"value": onnx.numpy_helper.from_array(np.array(2.5))}, np.float64(2.5)),
    ],
)
def test_a_constant_has_the_tensor_of_its_attribute(
    attribute: dict[str, Any], expected: Any
) -> None:
    node = ir.from_proto(onnx.helper.make_node("Constant", [], ["x"], **attribute))
    tensor = const_tensor(node.outputs[0])
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), expected)
    assert tensor.dtype == ir.DataType.from_numpy(np.asarray(expected).dtype)


def test_a_constant_of_a_function_s_attribute_has_no_tensor() -> None:
    node = ir.Node(
        "", "Constant", [], [ir.RefAttr("value", "given", ir.AttributeType.TENSOR)], num_outputs=1
    )
    assert const_tensor(node.outputs[0]) is None


def test_no_tensor_of_a_network_keeps_the_message_that_it_came_in() -> None:
    network = network_of(networks.mlp().model)
    tensors = [value.const_value for value in network.model.graph.initializers.values()]
    assert tensors
    assert not any(isinstance(tensor, ir.TensorProtoTensor) for tensor in tensors)
