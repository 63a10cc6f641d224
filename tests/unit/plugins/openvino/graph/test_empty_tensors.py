"""Tensors without elements on OPENVINO: where OpenVINO is wrong the layer is refused, elsewhere it
computes what ONNX says.

Each network runs as it is on OpenVINO too, so that a rule without which nothing is wrong any more
is found out.
"""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.plugins.openvino.compiler import Compiler
from headrace.plugins.openvino.library import openvino
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest

NOTHING = "Constant<value = {0}[{1}] {{}}>()"
NO_INDEX = NOTHING.format("int64", 0)
NO_FLOAT = NOTHING.format("float", 0)
NO_ROW = NOTHING.format("float", "0,2")
FLOATS = "(float[2,3] x) => "

WRONG = {
    "gather": f"{FLOATS} (float[2,N] y) {{ i = {NO_INDEX} y = Gather<axis = 1>(x, i) }}",
    "gather_dynamic": "(float[A,B] x) => (float[C,D] y)"
    f" {{ i = {NO_INDEX} y = Gather<axis = 1>(x, i) }}",
    "gather_inside": f"{FLOATS} (float[A,B] y)"
    f" {{ i = {NO_INDEX} t = Gather<axis = 1>(x, i) y = Neg(t) }}",
    "unsqueeze": f"{FLOATS} (float[A,B] y) {{ a = {NO_INDEX} y = Unsqueeze(x, a) }}",
    "shape": f"{FLOATS} (float[2,3] z, int64[1] y) {{ z = Neg(x) c = {NO_FLOAT} y = Shape(c) }}",
    "operand": f"(float[1] x) => (float[N] y) {{ c = {NO_FLOAT} y = Add(x, c) }}",
    "returned": f"{FLOATS} (float[A,B] z, float[N,2] y) {{ z = Neg(x) y = {NO_ROW} }}",
    "expand_scalar": f"(float x) => (float y) {{ s = {NO_INDEX} y = Expand(x, s) }}",
    "if": f"(bool x) => (float[N] y) {{ y = If(x) <then_branch = a () => (float[M] t)"
    f" {{ t = {NO_FLOAT} }}, else_branch = b () => (float[M] e)"
    " { e = Constant<value = float[1] {1}>() }> }",
}
OTHERS = {
    "hardmax_that_may_be_empty": "(float[A,B,C] x) => (float[A,B,C] y)"
    " { y = Hardmax<axis = 1>(x) }",
    "elements_made_of_none": "(float[2,0,3] x) => (float[A,B,C] y)"
    " { s = Constant<value = int64[3] {0, 3, 5}>() y = Reshape(x, s) }",
    "sequence_of_none": "(float[0,1,4] x, float[1,3,4] w, float[1,3,3] r)"
    " => (float[A,B,C,D] y, float[E,F,G] h) { y, h = RNN<hidden_size = 3>(x, w, r) }",
    "pool_of_none": "(float[1,1,0,8] x) => (float[A,B,C,D] y)"
    " { y = AveragePool<kernel_shape = [3,3], pads = [2,2,2,2]>(x) }",
    "norm_of_none": "(float[1,1,0,8] x) => (float[A,B,C,D] y)"
    " { y = LpPool<kernel_shape = [3,3], pads = [2,2,2,2]>(x) }",
    "points_of_none": "(float[1,1,0,8] x, float[1,2,2,2] g) => (float[A,B,C,D] y)"
    " { y = GridSample(x, g) }",
    "kernel_of_none": "(float[1,1,3,3] x, float[1,1,0,0] w) => (float[A,B,C,D] y)"
    " { y = ConvTranspose(x, w) }",
    "mean_of_none": "(float[2,0] x) => (float[A] y)"
    " { a = Constant<value = int64[1] {1}>() y = ReduceMean<keepdims = 0>(x, a) }",
    "row_of_none": "(float[0,3] x, int64 i) => (float[A] y) { y = Gather(x, i) }",
    "scale_of_none": "(float[A,B,C] x) => (float[D,E,F] y)"
    " { s = Constant<value = float[1,0,1] {}>() t = Mul(s, x) y = Add(t, x) }",
    "scale_of_none_repeated": "(float[A,B,C] x, int64[3] n) => (float[D,E,F] y)"
    " { s = Constant<value = float[1,0,1] {}>() r = Expand(s, n) t = Mul(r, x) y = Add(t, x) }",
    "scale_of_none_in_a_branch": "(bool c, float[A,B,C] x) => (float[D,E,F] y)"
    " { y = If(c) <then_branch = a () => (float[D,E,F] t) {"
    " s = Constant<value = float[1,0,1] {}>() r = Mul(s, x) t = Add(r, x) },"
    " else_branch = b () => (float[D,E,F] e) { e = Identity(x) }> }",
    "expand_to_a_given_scalar": "(float x, int64[0] s) => (float y) { y = Expand(x, s) }",
}
"""What neither OpenVINO nor the reference takes, or what depends on the request."""

RIGHT = {
    "reshape_to_scalar": f"(float[1] x) => (float y) {{ s = {NO_INDEX} y = Reshape(x, s) }}",
    "reshape_of_nothing": "(float[2,0,3] x) => (float[A,B] y)"
    " { s = Constant<value = int64[2] {0, -1}>() t = Constant<value = int64[2] {5, 0}>()"
    " y = Reshape<allowzero = 1>(x, t) }",
    "maximum_over_none": f"{FLOATS} (float[A,B] y)"
    f" {{ a = {NO_INDEX} y = ReduceMax<noop_with_empty_axes = 1>(x, a) }}",
    "sum_over_all": f"{FLOATS} (float[A,B] y) {{ a = {NO_INDEX} y = ReduceSum(x, a) }}",
    "concatenate": "(float[2,2] x) => (float[A,2] y)"
    f" {{ c = {NO_ROW} y = Concat<axis = 0>(c, x) }}",
    "scalar_of_shape": f"(float x) => (float y)"
    f" {{ s = {NO_INDEX} c = ConstantOfShape<value = float[1] {{3}}>(s) y = Add(x, c) }}",
    "resize": f"(float[1,1,2,2] x) => (float[1,1,4,4] y) {{ r = {NO_FLOAT}"
    " s = Constant<value = int64[4] {1, 1, 4, 4}>() y = Resize(x, r, r, s) }",
    "hardmax_with_elements": f"{FLOATS} (float[2,3] y) {{ y = Hardmax<axis = 0>(x) }}",
    "expand_to_zero": "(float[1,3] x) => (float[A,B] y)"
    " { s = Constant<value = int64[2] {0, 3}>() y = Expand(x, s) }",
    "hardmax": "(float[2,0,3] x) => (float[2,0,3] y) { y = Hardmax<axis = 0>(x) }",
    "hardmax_inside": "(float[2,0,3] x) => (float[A,B,C] y)"
    " { t = Hardmax<axis = 0>(x) y = Neg(t) }",
    "flatten": "(float[1,7,0,5] x) => (float[A,B] y) { y = Flatten<axis = 2>(x) }",
    "flatten_any": "(float[1,B,0,5] x) => (float[C,D] y) { y = Flatten<axis = 2>(x) }",
    "blocks": "(float[2,0,4] x) => (float[A,B,C] y)"
    " { s = Constant<value = int64[3] {2, 0, 2}>() y = Reshape<allowzero = 1>(x, s) }",
    "scan_of_empty_parts": "(float[0] s, float[3,0] x) => (float[A] y, float[B,C] z) { y, z ="
    " Scan<num_scan_inputs = 1, body = a (float[0] a, float[0] b) => (float[0] c, float[0] d)"
    " { c = Add(a, b) d = Neg(c) }>(s, x) }",
    "scan_of_empty_states": "(float[0] s, float[3,2] x) => (float[A] y, float[B,C] z) { y, z ="
    " Scan<num_scan_inputs = 1, body = a (float[0] a, float[2] b) => (float[0] c, float[2] d)"
    " { c = Neg(a) d = Neg(b) }>(s, x) }",
    "loop_of_nothing": "(float[0] x) => (float[A] y) { n = Constant<value = int64 {3}>()"
    " c = Constant<value = bool {1}>() y = Loop(n, c, x) <body = a (int64 i, bool g, float[0] a)"
    " => (bool on, float[0] b) { on = Identity(g) b = Add(a, a) }> }",
    **{
        f"filled_with_nothing_and_{name}": "(float[N,2,1] x) => (float[A,B,C] y) {"
        " i = Constant<value = int64[1] {0}>() z = Constant<value = int64[2] {0, 1}>()"
        " k = Constant<value = float[1] {3}>() n = Shape(x) b = Gather(n, i)"
        " s = Concat<axis = 0>(b, z) c = ConstantOfShape<value = float[1] {2}>(s)"
        f" t = Mul(c, k) {layer} }}"
        for name, layer in (("returned", "y = Neg(t)"), ("joined", "y = Concat<axis = 1>(t, x)"))
    },
    "product_of_nothing_given": "(float[2,0,3] x) => (float[A,B,C] y)"
    " { t = Mul(x, x) y = Add(t, x) }",
    "gather_what_is_given": "(float[2,0] x) => (float[A,0] y)"
    " { i = Constant<value = int64[1] {1}>() y = Gather<axis = 0>(x, i) }",
}

AXIS = "a = Constant<value = int64[1] {0}>()"
FLOAT_ROWS = "(float[N,2] x) => (float[A,B] y)"
SOUND = {
    "Concat": "(float[N,2] x) => (float[A,B] y)"
    " { c = Constant<value = float[1,2] {1, 2}>() y = Concat<axis = 0>(x, c) }",
    "Einsum": '(float[N,2] x) => (float[A,B] y) { y = Einsum<equation = "ij,ik->jk">(x, x) }',
    "Expand": "(float[N,2] x, int64[2] s) => (float[A,B] y) { y = Expand(x, s) }",
    "MatMul": "(float[N,2] x) => (float[A,B] y) { t = Transpose(x) y = MatMul(t, x) }",
    "NonZero": "(float[N,2] x) => (int64[A,B] y) { y = NonZero(x) }",
    "Pad": "(float[N,2] x) => (float[A,B] y)"
    " { p = Constant<value = int64[4] {1, 0, 1, 0}>() y = Pad(x, p) }",
    "Scatter": "(float[N,2] x, float[2] z) => (float[A] y) { a = Constant<value = int64[1] {1}>()"
    " r = ReduceProd<keepdims = 0>(x, a) i = Cast<to = 7>(r) y = ScatterElements(z, i, r) }",
    "ScatterND": "(float[N,1] x, float[2] z) => (float[A] y) {"
    " a = Constant<value = int64[1] {1}>() i = Cast<to = 7>(x) r = Squeeze(x, a)"
    " y = ScatterND(z, i, r) }",
    "Split": "(float[N,3] x) => (float[A,B] y, float[C,D] z)"
    " { s = Constant<value = int64[2] {1, 2}>() y, z = Split<axis = 1>(x, s) }",
    "Tile": "(float[N,2] x) => (float[A,B] y)"
    " { s = Constant<value = int64[2] {1, 2}>() y = Tile(x, s) }",
    "Unique": "(float[N,2] x) => (float[A] y, int64[B] i, int64[C] j, int64[D] k)"
    " { y, i, j, k = Unique(x) }",
    "UniqueRows": "(float[N,2] x) => (float[A,B] y, int64[C] i, int64[D] j, int64[E] k)"
    " { y, i, j, k = Unique<axis = 0>(x) }",
    "UniqueColumns": "(float[N,2] x) => (float[A,B] y) { y = Unique<axis = -1, sorted = 0>(x) }",
    "UniqueOfNarrow": "(float[N,2] x) => (uint16[A] y) { n = Cast<to = 4>(x) y = Unique(n) }",
    **{
        name: f"{FLOAT_ROWS} {{ {AXIS} y = {name}(x, a) }}"
        for name in ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum")
    },
}
"""Networks whose first input may be empty, and who are right then."""


def case_of(text: str) -> Case:
    model = parse(f"f {text}")
    inputs = {}
    for value in model.graph.input:
        sizes = value.type.tensor_type.shape.dim
        shape = [each.dim_value if each.HasField("dim_value") else 2 for each in sizes]
        elements = np.arange(1, np.prod(shape) + 1).reshape(shape)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        inputs[value.name] = elements.astype(dtype)
    return Case("f", model, inputs)


def agrees(outputs: dict[str, Any], case: Case) -> bool:
    found = {name: (value.shape, value.tolist()) for name, value in outputs.items()}
    return found == {name: (value.shape, value.tolist()) for name, value in case.expected().items()}


def as_it_is(compiler: Compiler, case: Case) -> dict[str, Any]:
    """What OpenVINO makes of it alone."""
    read = openvino.Core().read_model(case.model.SerializeToString())
    compiled = compiler.runtime.compile(read, "CPU", {})
    outputs = compiled(case.inputs, share_outputs=False)
    names = [value.name for value in case.model.graph.output]
    return {name: outputs[at] for at, name in enumerate(names)}


@pytest.mark.parametrize("name", WRONG)
def test_openvino_alone_is_wrong_about_it(compiler: Compiler, name: str) -> None:
    case = case_of(WRONG[name])
    assert not agrees(as_it_is(compiler, case), case)


@pytest.mark.parametrize("name", WRONG)
def test_a_layer_that_would_be_wrong_is_refused(plugin: Plugin, name: str) -> None:
    case = case_of(WRONG[name])
    assert plugin.query_network(case.network, {}).unsupported
    with pytest.raises(UnsupportedLayers):
        plugin.load_network(Load(case.network))


@pytest.mark.parametrize("name", OTHERS)
def test_what_may_be_wrong_is_refused_too(plugin: Plugin, name: str) -> None:
    network = Network.from_bytes(parse(f"f {OTHERS[name]}").SerializeToString())
    assert plugin.query_network(network, {}).unsupported
    with pytest.raises(UnsupportedLayers):
        plugin.load_network(Load(network))


def test_openvino_alone_ends_the_process_at_a_scale_without_elements() -> None:
    program = """
import numpy, openvino
from openvino import opset13
x = opset13.parameter([-1, -1, -1], openvino.Type.f32)
scale = opset13.constant(numpy.zeros((1, 0, 1), numpy.float32))
model = openvino.Model([opset13.add(opset13.multiply(scale, x), x)], [x])
openvino.Core().compile_model(model, "CPU")
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode < 0


@pytest.mark.parametrize("name", RIGHT)
def test_a_layer_that_is_right_all_the_same_is_not_refused(plugin: Plugin, name: str) -> None:
    case = case_of(RIGHT[name])
    assert not plugin.query_network(case.network, {}).unsupported
    network = plugin.load_network(Load(case.network))
    assert agrees(InferRequest(network).infer(case.inputs), case)


@pytest.mark.parametrize("axis", [-1, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("sizes", ["A,B,C,D", "A,B,4,5", "A,3,C,5"])
def test_a_flatten_of_nothing_keeps_the_sizes_that_are_not_0(
    plugin: Plugin, axis: int, sizes: str
) -> None:
    text = f"f (float[{sizes}] x) => (float[P,Q] y) {{ y = Flatten<axis = {axis}>(x) }}"
    request = InferRequest(plugin.load_network(Load(Case("f", parse(text), {}).network)))
    for at in (None, 0, 1, 2, 3, None):
        shape = [2, 3, 4, 5]
        if at is not None and sizes.split(",")[at].isalpha():
            shape[at] = 0
        x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        rows, columns = math.prod(shape[:axis]), math.prod(shape[axis:])
        found = np.asarray(request.infer({"x": x})["y"])
        assert found.shape == (rows, columns)
        assert (found == x.reshape(rows, columns)).all()


@pytest.mark.parametrize("name", SOUND)
def test_an_operation_that_is_known_to_be_sound_is_right_of_nothing(
    plugin: Plugin, name: str
) -> None:
    """After a run of something else, which leaves its values in the memory."""
    model = case_of(SOUND[name]).model
    values = {"s": np.array([1, 2]), "z": np.ones(2, np.float32)}
    needed = {value.name: values[value.name] for value in model.graph.input if value.name != "x"}
    columns = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    empty = Case("f", model, {"x": np.ones((0, columns), np.float32), **needed})
    request = InferRequest(plugin.load_network(Load(empty.network)))
    request.infer({"x": np.ones((1, columns), np.float32), **needed})
    assert agrees(request.infer(empty.inputs), empty)
