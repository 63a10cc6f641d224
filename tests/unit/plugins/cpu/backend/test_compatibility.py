"""Networks newer than the backend."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from headrace.plugins.cpu.backend.compatibility import Compatibility
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.network.type_names import type_text
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import network_of

READS_IR = 11
READS_OPSET = 26  # where BitShift, SpaceToDepth and Einsum are older than in 28
KNOWN = onnx.defs.onnx_opset_version()


def backend(data: bytes) -> bool:
    """Loads what ONNX Runtime would if it were as old as this."""
    model = onnx.ModelProto.FromString(data)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    return (
        model.ir_version <= READS_IR
        and versions.get("", 0) <= READS_OPSET
        and versions.get("ai.onnx.ml", 0) <= 4
    )


@pytest.fixture
def compatibility() -> Compatibility:
    return Compatibility("CPU", backend)


def model(
    op_type: str, dtype: int = TensorProto.FLOAT, opset: int = 28, **attributes: Any
) -> ir.Model:
    """A network of one layer, called `y`, its types inferred."""
    arity = onnx.defs.get_schema(op_type, opset).min_input
    names = [f"x{index}" for index in range(arity)]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    shape = [1, 4, 4, 4]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name in names],
        [helper.make_tensor_value_info("y", dtype, None)],
    )
    proto = helper.make_model(graph, ir_version=13, opset_imports=[helper.make_opsetid("", opset)])
    made = ir.from_proto(proto)
    infer_types(made)
    return made


def reason(compatibility: Compatibility, made: ir.Model) -> str | None:
    (node,) = made.graph
    return compatibility.reason(node, made.opset_imports[""])


def test_the_newest_versions_are_found_by_trying(compatibility: Compatibility) -> None:
    assert compatibility.ir_version == READS_IR
    assert compatibility.opset("") == READS_OPSET
    assert compatibility.opset("ai.onnx.ml") == 4
    assert compatibility.opset("com.example") is None


def test_a_set_that_the_backend_reads_without_having_its_kernels_is_not_used() -> None:
    """ONNX Runtime 1.32 reads set 28, and has kernels of set 27."""

    def reads_more(data: bytes) -> bool:
        found = onnx.ModelProto.FromString(data)
        has_kernel = found.graph.node[0].op_type == "Identity" or found.opset_import[0].version < 28
        return found.ir_version <= READS_IR and has_kernel

    assert Compatibility("CPU", reads_more).opset("") == 27


def test_each_version_is_tried_once() -> None:
    tried: list[bytes] = []
    compatibility = Compatibility("CPU", lambda data: tried.append(data) or backend(data))  # type: ignore[func-returns-value]
    first = compatibility.opset("")
    count = len(tried)
    assert compatibility.opset("") == first
    assert len(tried) == count


def test_a_model_that_the_backend_reads_stays_itself(compatibility: Compatibility) -> None:
    made = model("Relu", opset=20)
    made.ir_version = 9
    assert compatibility.lowered(made) is made


def test_a_newer_model_of_unchanged_operators_is_stamped_older(
    compatibility: Compatibility,
) -> None:
    made = model("Relu")
    lowered = compatibility.lowered(made)
    assert (lowered.ir_version, lowered.opset_imports[""]) == (READS_IR, READS_OPSET)
    assert (made.ir_version, made.opset_imports[""]) == (13, 28)


def test_the_operator_sets_of_functions_are_stamped_too(compatibility: Compatibility) -> None:
    made = model("Relu")
    inner = ir.Value(name="a")
    node = ir.node("Relu", [inner])
    body = ir.Graph([inner], list(node.outputs), nodes=[node], opset_imports={"": 28}, name="f")
    function = ir.Function("local", "f", graph=body, attributes=[])
    made.functions[function.identifier()] = function
    (lowered,) = compatibility.lowered(made).functions.values()
    assert lowered.opset_imports[""] == READS_OPSET


def test_an_operator_that_only_took_more_types_is_the_same_for_the_old_ones(
    compatibility: Compatibility,
) -> None:
    unsigned = model("BitShift", TensorProto.UINT32, direction="LEFT")
    signed = model("BitShift", TensorProto.INT32, direction="LEFT")
    assert reason(compatibility, unsigned) is None
    assert reason(compatibility, signed) == (
        "BitShift of operator set 28 takes tensor(int32); "
        "operator set 26, the backend's newest, does not"
    )


def test_an_operator_is_the_same_without_its_new_attributes(compatibility: Compatibility) -> None:
    assert reason(compatibility, model("SpaceToDepth", blocksize=2)) is None
    why = reason(compatibility, model("SpaceToDepth", blocksize=2, mode="CRD"))
    assert why is not None
    assert "mode" in why


def test_a_new_operator_is_named_with_its_operator_set(compatibility: Compatibility) -> None:
    why = reason(compatibility, model("SwiGLU"))
    assert why == "SwiGLU of operator set 28 is newer than the backend, which reads operator set 26"


def test_a_changed_operator_on_values_of_unknown_type_is_not_taken_for_the_same(
    compatibility: Compatibility,
) -> None:
    made = model("BitShift", TensorProto.UINT32, direction="LEFT")
    made.graph.inputs[0].type = None
    why = reason(compatibility, made)
    assert why is not None
    assert "types" in why


def test_an_operator_set_that_nobody_here_knows_is_not_guessed(
    compatibility: Compatibility,
) -> None:
    made = model("Relu")
    (node,) = made.graph
    why = compatibility.reason(node, KNOWN + 3)
    assert why is not None
    assert str(KNOWN) in why


def test_what_cannot_be_stamped_lists_every_layer(compatibility: Compatibility) -> None:
    with pytest.raises(UnsupportedLayers) as caught:
        compatibility.lowered(model("SwiGLU"))
    assert [layer.op_type for layer in caught.value.layers] == ["SwiGLU"]


def test_layers_in_bodies_are_looked_at_too(compatibility: Compatibility) -> None:
    bodies = [
        helper.make_graph(
            [helper.make_node("SwiGLU", ["x", "x"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name in ("a", "b")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, ir_version=13, opset_imports=[helper.make_opsetid("", 28)])
    network = transform_network(network_of(proto))
    with pytest.raises(UnsupportedLayers) as caught:
        compatibility.lowered(network.model)
    assert {layer.layer for layer in caught.value.layers} == {
        "y/then_branch/a",
        "y/else_branch/b",
    }


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        (ir.TensorType(ir.DataType.FLOAT8E4M3FN), "tensor(float8e4m3fn)"),
        (ir.SequenceType(ir.TensorType(ir.DataType.STRING)), "seq(tensor(string))"),
        (
            ir.OptionalType(ir.SequenceType(ir.TensorType(ir.DataType.INT64))),
            "optional(seq(tensor(int64)))",
        ),
    ],
)
def test_types_are_written_as_in_schemas(value_type: ir.TypeProtocol, text: str) -> None:
    assert type_text(value_type) == text
