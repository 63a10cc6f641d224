"""Bodies with fewer results than their layer hands on."""

from __future__ import annotations

import onnx
import pytest

from headrace.runtime.errors import InvalidModel
from headrace.testing.case import parse
from tests.support.model_zoo import network

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
WHOLE = {SCAN: [STATE, SLICE], LOOP: [ON, STATE, SLICE], IF: [STATE, SLICE]}


def of(text: str, outputs: list[str]) -> onnx.ModelProto:
    return parse(text.format(", ".join(outputs)))


@pytest.mark.parametrize("text", WHOLE, ids=["Scan", "Loop", "If"])
def test_a_body_gives_what_its_layer_hands_on(text: str) -> None:
    outputs = WHOLE[text]
    network(of(text, outputs))
    for count in range(len(outputs)):
        with pytest.raises(InvalidModel) as caught:
            network(of(text, outputs[:count]))
        expected = f"of layer 'y' has {count} outputs; it needs {len(outputs)} for this"
        assert expected in caught.value.message


@pytest.mark.parametrize("text", [SCAN, LOOP], ids=["Scan", "Loop"])
def test_a_body_gives_each_state_even_if_the_layer_does_not_hand_it_on(text: str) -> None:
    proto = of(text, [])
    layer = proto.graph.node[0]
    layer.input.append("h")
    layer.input.append("h")
    with pytest.raises(InvalidModel, match="has 0 outputs; it needs"):
        network(proto)


def test_the_lengths_of_an_early_scan_are_no_state() -> None:
    text = SCAN.replace("(h, x)", "(, h, x)")
    proto = of(text, WHOLE[SCAN])
    del proto.graph.node[0].output[1:]
    del proto.graph.output[1:]
    proto.opset_import[0].version = 8
    del proto.graph.node[0].attribute[1].g.output[1:]
    network(proto)
