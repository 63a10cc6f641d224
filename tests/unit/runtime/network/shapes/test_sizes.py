"""Sizes that follow from a request's shapes are those that ONNX Runtime's kernels make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from headrace.runtime.network.shapes import formulas
from headrace.runtime.network.shapes.formulas import Misfit, Program, Term, number_of
from headrace.runtime.network.shapes.sizes import Sizes
from headrace.testing.backend_cases.cases import node_tests
from headrace.testing.case import network_of, parse

MOST = 64  # elements of an input that may be a list of sizes


def sizes_of(text: str, **weights: Any) -> tuple[Sizes, Mapping[str, ir.Value]]:
    model = network_of(text, weights).model
    values = {value.name or "": value for node in model.graph for value in node.outputs}
    return Sizes(model), values


def numbers(sizes: Sizes, value: ir.Value, /, **shapes: tuple[int, ...]) -> list[int | None] | None:
    shape = sizes.of(value)
    if shape is None:
        return None
    found = Program(size for size in shape if size is not None)(shapes)
    return [None if size is None else number_of(size, found) for size in shape]


# -- beside ONNX Runtime --


def with_free_axes(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> onnx.ModelProto:
    """The model with no size declared, and with short lists of integers as constants."""
    free = onnx.ModelProto()
    free.CopyFrom(model)
    del free.graph.value_info[:], free.graph.input[:], free.graph.output[:]
    for value in model.graph.input:
        array = inputs[value.name]
        if array.dtype in (np.int64, np.int32) and array.ndim <= 1 and array.size <= MOST:
            free.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
            continue
        axes = [f"{value.name}.{axis}" for axis in range(array.ndim)]
        kind = value.type.tensor_type.elem_type
        free.graph.input.append(onnx.helper.make_tensor_value_info(value.name, kind, axes))
    for node in model.graph.node:
        free.graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    return free


def compared(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Iterator[str]:
    """The operator of each value whose sizes were compared with ONNX Runtime's."""
    free = with_free_axes(model, inputs)
    given = {value.name: inputs[value.name] for value in free.graph.input}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(free.SerializeToString(), options)
        names = [port.name for port in session.get_outputs()]
        made = dict(zip(names, session.run(names, given), strict=True))
    except Exception:  # noqa: BLE001 - the backend lacks a kernel, or is told a type that it lacks
        return
    network = ir.serde.deserialize_model(free)
    sizes = Sizes(network)
    shapes = {name: array.shape for name, array in given.items()}
    for node in network.graph:
        for value in node.outputs:
            array = made.get(value.name or "")
            if isinstance(array, np.ndarray) and sizes.of(value) is not None:
                found = numbers(sizes, value, **shapes)
                assert found is not None
                assert len(found) == array.ndim, (node, found, array.shape)
                for size, actual in zip(found, array.shape, strict=True):
                    assert size in (None, actual), (node, found, array.shape)
                yield node.op_type


@pytest.mark.long
def test_the_sizes_in_onnx_own_cases_are_those_that_the_backend_makes() -> None:
    operators: set[str] = set()
    count = 0
    for case in node_tests():
        assert case.model is not None
        assert case.data_sets
        arrays, names = case.data_sets[0][0], [value.name for value in case.model.graph.input]
        if all(isinstance(array, np.ndarray | np.generic) for array in arrays):
            inputs = {name: np.asarray(array) for name, array in zip(names, arrays, strict=False)}
            if len(inputs) == len(names):
                found = list(compared(case.model, inputs))
                count += len(found)
                operators |= {*found}
    assert count > 5000
    assert len(operators) > 120


# -- what is known --


def test_a_size_is_a_formula_over_those_of_the_inputs() -> None:
    sizes, values = sizes_of(
        """g (float[1, 3, h, w] x) => (float[a, b, c, d] y) {
            t = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, k)
            y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(t)
        }""",
        k=np.ones((8, 3, 3, 3), np.float32),
    )
    assert numbers(sizes, values["y"], x=(1, 3, 33, 20)) == [1, 8, 8, 5]


def test_a_size_that_follows_from_shapes_is_known_where_a_network_computes_it() -> None:
    sizes, values = sizes_of(
        """g (float[n, t, 6] x) => (float[a, b, c] y) {
            s = Shape(x) n = Gather(s, i0) t = Gather(s, i1) h = Div(t, two)
            l = Concat<axis = 0>(n, h, twelve) y = Reshape(x, l)
        }""",
        i0=np.array([0]),
        i1=np.array([1]),
        two=np.array([2]),
        twelve=np.array([12]),
    )
    assert numbers(sizes, values["y"], x=(3, 8, 6)) == [3, 4, 12]


@pytest.mark.parametrize(("sides", "bins"), [(0, 16), (1, 9)])
def test_a_spectrum_has_the_frames_and_the_frequencies_that_fit(sides: int, bins: int) -> None:
    text = (
        "g (float[1,n] x) => (float[a,b,c,d] y) <int64 step = {8}, float[16] window> "
        f"{{ y = STFT<onesided = {sides}>(x, step, window) }}"
    )
    sizes, values = sizes_of(text, window=np.ones(16, np.float32))
    assert numbers(sizes, values["y"], x=(1, 128)) == [1, 15, bins, 2]


def test_a_size_that_follows_from_values_is_not_known() -> None:
    sizes, values = sizes_of("g (float[n] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }")
    assert sizes.of(values["y"]) == (None, None)


def test_equal_sizes_are_the_same_object() -> None:
    sizes, values = sizes_of(
        """g (float[n, c] x) => (float[a, b] y, float[d, e] z) {
            y = Relu(x) t = Transpose(x) z = Transpose(t)
        }"""
    )
    first, second = sizes.of(values["y"]), sizes.of(values["z"])
    assert first == second
    assert all(isinstance(size, Term) for size in first or ())


def test_two_axes_with_one_symbol_may_differ() -> None:
    sizes, values = sizes_of("g (float[n, n] x) => (float[n, n] y) { y = Relu(x) }")
    assert numbers(sizes, values["y"], x=(2, 3)) == [2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n] x) => (float[3] y) <float[3] t> { t = Relu(x) y = Neg(t) }",
        "g (float[n] x) => (float[3] t, float[3] y) { t = Relu(x) y = Neg(t) }",
    ],
)
def test_a_shape_that_is_only_declared_counts_for_nothing(text: str) -> None:
    sizes, values = sizes_of(text)
    assert numbers(sizes, values["y"], x=(5,)) == [5]
    assert sizes.certain_outputs() == frozenset()


def test_an_output_is_certain_if_its_declared_shape_follows() -> None:
    sizes, _ = sizes_of("g (float[2, 3] x) => (float[3, 2] y) { y = Transpose(x) }")
    assert sizes.certain_outputs() == {"y"}


def test_a_branch_knows_the_sizes_around_it_and_an_if_those_of_both_branches() -> None:
    sizes, values = sizes_of(
        """g (bool go, float[n, 4] x) => (float[a, b] y) {
            y = If(go) <
                then_branch = b () => (float[c, d] r) { r = Relu(x) },
                else_branch = b () => (float[c, d] q) { h = Neg(x) q = MatMul(h, w) }
            >
        }""",
        w=np.ones((4, 5), np.float32),
    )
    shape = sizes.of(values["y"])
    assert shape is not None
    assert isinstance(shape[0], Term)
    assert shape[1] is None


def test_a_function_knows_the_sizes_of_each_call() -> None:
    sizes, values = sizes_of(
        """g (float[n, 4] x) => (float[a, b] y, float[c, d] z) {
            y = headrace.test.swap(x) k = Flatten<axis = 0>(x) z = headrace.test.swap(k)
        }
        <domain: "headrace.test", opset_import: ["" : 21]>
        swap (a) => (b) { b = Transpose(a) }"""
    )
    assert numbers(sizes, values["y"], x=(3, 4)) == [4, 3]
    assert numbers(sizes, values["z"], x=(3, 4)) == [12, 1]


def test_an_attribute_of_a_wrong_type_tells_nothing() -> None:
    text = "g (float[n] x) => (float[a] y) { y = Concat<axis = 1.0>(x, x) }"
    model = ir.serde.deserialize_model(parse(text))
    assert Sizes(model).of(model.graph.outputs[0]) is None


def test_a_tensor_cannot_have_more_axes_than_numpy_has() -> None:
    gathers = " ".join(f"x{at + 1} = Gather(x{at}, i)" for at in range(7))
    sizes, values = sizes_of(
        f"g (float[n] x0) => (float y) {{ {gathers} y = Neg(x7) }}",
        i=np.zeros((1,) * 20, np.int64),
    )
    assert sizes.deep
    assert sizes.of(values["y"]) is None


def test_sizes_that_no_run_takes_name_the_layer() -> None:
    sizes, values = sizes_of(
        "g (float[n] x, float[m] z) => (float[a] y) { t = Add(x, z) y = Neg(t) }"
    )
    assert numbers(sizes, values["y"], x=(4,), z=(1,)) == [4]
    with pytest.raises(Misfit, match="layer 't': the shapes of the inputs do not fit"):
        numbers(sizes, values["y"], x=(4,), z=(3,))


def test_a_size_that_no_integer_of_64_bits_holds_is_refused() -> None:
    times = " ".join(f"x{at + 1} = Tile(x{at}, many)" for at in range(5))
    sizes, values = sizes_of(
        f"g (float[n] x0) => (float[m] y) {{ {times} y = Neg(x5) }}", many=np.array([2**20])
    )
    with pytest.raises(Misfit, match="layer 'x3': a size is too large"):
        numbers(sizes, values["y"], x0=(2**5,))


def test_a_network_has_so_many_formulas_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formulas, "_MOST_TERMS", 3)
    times = " ".join(f"x{at + 1} = Tile(x{at}, twice)" for at in range(5))
    sizes, values = sizes_of(
        f"g (float[n] x0) => (float[m] y) {{ {times} y = Neg(x5) }}", twice=np.array([2])
    )
    assert numbers(sizes, values["x2"], x0=(5,)) == [20]
    assert sizes.of(values["y"]) == (None,)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("order", ["c, s", "s, c"])
def test_a_list_without_elements_meets_one_of_one_element(operator: str, order: str) -> None:
    sizes, values = sizes_of(
        f"g (float[N] x) => (int64[M] y) {{ s = Shape(x) y = {operator}({order}) }}",
        c=np.zeros(0, np.int64),
    )
    assert sizes.elements(values["y"]) == ()
