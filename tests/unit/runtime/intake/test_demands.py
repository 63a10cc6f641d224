"""Bodies that take other values than their layer hands to them, or give fewer than it hands on."""

from __future__ import annotations

import onnx
import pytest

from headrace.runtime.errors import InvalidModel
from headrace.testing.case import network_of, parse
from tests.support.model_zoo import model, node, value

SCAN = (
    "g (float[2] h, float[3,2] x) => (float[2] y, float[3,2] z) {{ "
    "y, z = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] v) => ({}) "
    "{{ t = Add(s, v) u = Neg(t) }}>(h, x) }}"
)
LOOP = (
    "g (int64 n, bool c, float[2] h) => (float[2] y, float[?,2] z) {{ "
    "y, z = Loop<body = b (int64 i, bool k, float[2] s) => ({}) "
    "{{ d = Identity(k) t = Add(s, s) u = Neg(t) }}>(n, c, h) }}"
)
IF = (
    "g (bool c, float[2] x) => (float[2] y, float[2] z) {{ y, z = If<"
    "then_branch = t () => (float[2] p, float[2] q) {{ p = Neg(x) q = Abs(x) }}, "
    "else_branch = e () => ({}) {{ t = Neg(x) u = Abs(x) }}>(c) }}"
)
STATE, SLICE, ON = "float[2] t", "float[2] u", "bool d"
BODIES = ("body", "else_branch")
WHOLE = {SCAN: [STATE, SLICE], LOOP: [ON, STATE, SLICE], IF: [STATE, SLICE]}


def of(text: str, outputs: list[str]) -> onnx.ModelProto:
    return parse(text.format(", ".join(outputs)))


@pytest.mark.parametrize("text", WHOLE, ids=["Scan", "Loop", "If"])
def test_a_body_gives_what_its_layer_hands_on(text: str) -> None:
    outputs = WHOLE[text]
    network_of(of(text, outputs))
    for count in range(len(outputs)):
        with pytest.raises(InvalidModel) as caught:
            network_of(of(text, outputs[:count]))
        expected = f"of layer 'y' has {count} outputs; it needs {len(outputs)} for this"
        assert expected in caught.value.message


@pytest.mark.parametrize("text", [SCAN, LOOP], ids=["Scan", "Loop"])
def test_a_body_gives_each_state_even_if_the_layer_does_not_hand_it_on(text: str) -> None:
    proto = of(text, [])
    layer = proto.graph.node[0]
    for name in ("more", "still_more"):
        layer.input.append("h")
        layer.attribute[-1].g.input.add().CopyFrom(layer.attribute[-1].g.input[-1])
        layer.attribute[-1].g.input[-1].name = name
    with pytest.raises(InvalidModel, match="has 0 outputs; it needs"):
        network_of(proto)


@pytest.mark.parametrize("text", WHOLE, ids=["Scan", "Loop", "If"])
def test_a_body_takes_what_its_layer_hands_to_it(text: str) -> None:
    needed = {SCAN: 2, LOOP: 3, IF: 0}[text]
    for count in {0, 2, 3, 4} - {needed}:
        proto = of(text, WHOLE[text])
        (body,) = [each.g for each in proto.graph.node[0].attribute if each.name in BODIES]
        del body.input[:]
        for at in range(count):
            body.input.append(onnx.helper.make_tensor_value_info(f"a{at}", 1, [2]))
        with pytest.raises(InvalidModel, match=f"has {count} inputs; it needs {needed} for this"):
            network_of(proto)


def test_a_constant_among_the_inputs_of_a_body_is_not_handed_to_it() -> None:
    proto = of(SCAN, WHOLE[SCAN])
    body = proto.graph.node[0].attribute[-1].g
    body.input.append(onnx.helper.make_tensor_value_info("w", 1, [1]))
    body.initializer.append(onnx.helper.make_tensor("w", 1, [1], [1.0]))
    network_of(proto)


def test_the_lengths_of_an_early_scan_are_no_state() -> None:
    text = SCAN.replace("(h, x)", "(, h, x)")
    proto = of(text, WHOLE[SCAN])
    del proto.graph.node[0].output[1:]
    del proto.graph.output[1:]
    proto.opset_import[0].version = 8
    del proto.graph.node[0].attribute[1].g.output[1:]
    network_of(proto)


def test_a_split_before_version_18_needs_neither_lengths_nor_a_number() -> None:
    halves = [value("y", shape=[2]), value("z", shape=[2])]
    network_of(model([node("Split", ["x"], ["y", "z"])], [value("x", shape=[4])], halves, opset=17))
