"""A ZipMap at the end of a network becomes a matrix of scores; any other is refused."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.zip_maps import CLASSES, from_metadata
from headrace.runtime.network.network import Network
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import network_of

_NAMES = ["no", "yes", "perhaps"]


def scores(**classes: Any) -> onnx.ModelProto:
    """Scores of three classes that become maps."""
    numbers = not classes or "classlabels_int64s" in classes
    key = TensorProto.INT64 if numbers else TensorProto.STRING
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"]),
        helper.make_node("ZipMap", ["s"], ["y"], "zip", domain="ai.onnx.ml", **classes),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_value_info("y", kind)],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def read(model: onnx.ModelProto) -> Network:
    return network_of(model)


def refusal(model: onnx.ModelProto) -> str:
    with pytest.raises(InvalidModel) as caught:
        read(model)
    assert "zipmap" in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        ({"classlabels_strings": _NAMES}, ("no", "yes", "perhaps")),
        ({"classlabels_int64s": [-5, 0, 7]}, (-5, 0, 7)),
    ],
)
def test_the_output_is_a_matrix_that_tells_its_classes(
    classes: dict[str, Any], told: tuple[Any, ...]
) -> None:
    network = read(scores(**classes))
    (port,) = network.outputs
    assert (port.name, port.dtype.name, port.shape) == ("y", "FLOAT", (None, 3))
    assert port.classes == told
    assert "'y' is a matrix of scores" in network.notes[0]
    assert network.layer_names[1] == "zip"
    (kept,) = transform_network(network).outputs
    assert kept.classes == told


def test_the_classes_survive_being_written_and_read() -> None:
    network = read(scores(classlabels_strings=_NAMES))
    again = Network.from_bytes(network.to_bytes())
    assert again.outputs == network.outputs
    assert again.notes == ()


def test_a_map_that_is_passed_on_is_a_matrix_too() -> None:
    model = scores(classlabels_strings=_NAMES)
    model.graph.node.append(helper.make_node("Identity", ["y"], ["z"]))
    output = model.graph.output.add()
    output.CopyFrom(model.graph.output[0])
    output.name = "z"
    model.graph.value_info.add(name="w", type=output.type)  # of a value that is not there
    del model.graph.value_info[:]
    network = read(model)
    assert [port.classes for port in network.outputs] == [tuple(_NAMES)] * 2
    assert len(network.notes) == 2


def test_a_network_of_predictors_alone_gets_the_operators_that_it_needs() -> None:
    model = scores(classlabels_strings=_NAMES)
    del model.opset_import[0]
    model.graph.node[0].CopyFrom(
        helper.make_node("Normalizer", ["x"], ["s"], domain="ai.onnx.ml", norm="L1")
    )
    assert read(model).outputs[0].classes == tuple(_NAMES)


def test_too_many_classes_are_not_told_and_the_note_says_so() -> None:
    network = read(scores(classlabels_int64s=[*range(5000)]))
    (port,) = network.outputs
    assert (port.shape, port.classes) == ((None, 5000), ())
    assert "its 5000 classes are too many" in network.notes[0]


def test_a_map_that_another_layer_reads_is_refused_with_the_way_out() -> None:
    model = scores(classlabels_strings=_NAMES)
    model.graph.node.append(helper.make_node("SequenceLength", ["y"], ["count"]))
    model.graph.output.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))
    assert "layer 'zip'" in refusal(model) or "'y'" in refusal(model)


def test_a_map_inside_a_network_is_refused_by_its_layer() -> None:
    model = scores(classlabels_strings=_NAMES)
    model.graph.node.append(helper.make_node("SequenceLength", ["y"], ["count"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("count", TensorProto.INT64, []))
    assert "layer 'zip' makes maps" in refusal(model)


def test_a_map_of_an_outer_value_that_a_branch_reads_is_refused() -> None:
    model = scores(classlabels_strings=_NAMES)
    counted = helper.make_tensor_value_info("c", TensorProto.INT64, [])
    body = helper.make_graph(
        [helper.make_node("SequenceLength", ["y"], ["c"])], "body", [], [counted]
    )
    model.graph.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    model.graph.node.append(
        helper.make_node("If", ["which"], ["count"], then_branch=body, else_branch=body)
    )
    model.graph.output.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))
    assert "'y'" in refusal(model)


@pytest.mark.parametrize(
    "classes", [{}, {"classlabels_strings": _NAMES, "classlabels_int64s": [0, 1, 2]}]
)
def test_a_map_without_clear_classes_is_refused(classes: dict[str, Any]) -> None:
    refusal(scores(**classes))


def test_an_input_that_is_a_map_is_refused_with_the_way_out() -> None:
    model = scores(classlabels_strings=_NAMES)
    model.graph.input[0].type.CopyFrom(model.graph.output[0].type.sequence_type.elem_type)
    assert "DictVectorizer" in refusal(model)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('["a", "b"]', ("a", "b")),
        ("[1, -2]", (1, -2)),
        ("[1, true]", ()),
        ('["a", 1]', ()),
        ("[1.5]", ()),
        ('{"a": 1}', ()),
        ("[", ()),
        ("[[]]", ()),
        (f"[{2**63}]", ()),
        ('["\\ud800"]', ()),
        ("[" * 100_000, ()),
        (f'["{"a" * 70_000}"]', ()),
    ],
)
def test_a_model_may_name_its_columns_and_what_names_none_is_passed_over(
    text: str, told: tuple[Any, ...]
) -> None:
    model = scores(classlabels_strings=_NAMES)
    del model.graph.node[1]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("s", TensorProto.FLOAT, ["n", 3]))
    model.graph.output[0].metadata_props.add(key=CLASSES, value=text)
    (port,) = read(model).outputs
    assert port.classes == told == from_metadata(text)
