"""Sparse tensors become dense ones, and outputs that are listed twice are given once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake import sparse as module
from headrace.runtime.intake.limits import Limits
from headrace.runtime.network.network import Network
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator
from headrace.testing.case import network_of

HEADER = '<ir_version: 8, opset_import: ["": 17]>'


def sparse(
    values: Any, indices: Any, sizes: tuple[int, ...], name: str = "w"
) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray(values), name),
        numpy_helper.from_array(np.asarray(indices, np.int64), f"{name}_indices"),
        sizes,
    )


def with_weight(weight: onnx.SparseTensorProto) -> bytes:
    kind = weight.values.data_type
    word = onnx.TensorProto.DataType.Name(kind).lower()
    model = parse_model(f"{HEADER} g ({word}[2,3] x) => ({word}[2,3] y) {{ y = Add(x, w) }}")
    model.graph.sparse_initializer.append(weight)
    return model.SerializeToString()


def weight_of(network: Network) -> Any:
    tensor = network.model.graph.initializers["w"].const_value
    assert tensor is not None
    return tensor.numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64])
@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["places", "by axis"])
def test_a_sparse_initialiser_becomes_a_dense_one(indices: Any, dtype: Any) -> None:
    network = Network.from_bytes(with_weight(sparse(np.array([7, 9], dtype), indices, (2, 3))))
    assert weight_of(network).dtype == dtype
    assert weight_of(network).tolist() == [[0, 7, 0], [0, 0, 9]]
    again = Network.from_bytes(network.to_bytes())
    assert weight_of(again).tolist() == [[0, 7, 0], [0, 0, 9]]


def test_a_large_one_is_put_together_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 100)
    rng = np.random.default_rng(0)
    places = np.sort(rng.choice(60_000, 7_777, replace=False))
    values = rng.random(7_777, np.float32)
    wanted = np.zeros(60_000, np.float32)
    wanted[places] = values
    network = Network.from_bytes(with_weight(sparse(values, places, (200, 300))), spooled=True)
    np.testing.assert_array_equal(weight_of(network), wanted.reshape(200, 300))


def test_a_sparse_constant_becomes_a_dense_one() -> None:
    model = parse_model(
        f"{HEADER} g (float[3] x) => (float[3] y) {{ c = Constant<value = float {{1}}>() "
        "y = Add(x, c) }"
    )
    attribute = model.graph.node[0].attribute[0]
    attribute.CopyFrom(
        helper.make_attribute("sparse_value", sparse(np.array([4], np.float32), [2], (3,)))
    )
    network = network_of(model)
    evaluator = CorrectedEvaluator(onnx.ModelProto.FromString(network.to_bytes()))
    (y,) = evaluator.run(None, {"x": np.ones(3, np.float32)})
    assert np.asarray(y).tolist() == [1, 1, 5]


ONE = np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (sparse(ONE, [6], (2, 3)), "out of bounds"),
        (sparse(ONE, [-1], (2, 3)), "out of bounds"),
        (sparse(ONE, [[1, 3]], (2, 3)), "out of bounds"),
        (sparse(np.ones(2, np.float32), [3, 3], (2, 3)), "ascend"),
        (sparse(np.ones(2, np.float32), [3, 1], (2, 3)), "ascend"),
        (sparse(ONE, [1, 2], (2, 3)), r"indices int64\[2\] for values \[1\]"),
        (sparse(ONE, [[1]], (2, 3)), r"indices int64\[1, 1\]"),
        (sparse(np.ones((1, 1), np.float32), [1], (2, 3)), "no list of values"),
        (sparse(ONE, [1], (2, -3)), "no size of an axis"),
        (sparse(ONE, [1], (2**20, 2**20)), "bytes once they are dense"),
        (sparse(ONE, [1], (2, 3), name=""), "has no name"),
    ],
)
def test_one_that_does_not_fit_is_refused(weight: onnx.SparseTensorProto, why: str) -> None:
    with pytest.raises(InvalidModel, match=why):
        Network.from_bytes(with_weight(weight), Limits())


def test_all_together_are_bounded() -> None:
    model = onnx.ModelProto.FromString(with_weight(sparse(ONE, [1], (2, 3))))
    for at in range(3):
        model.graph.sparse_initializer.append(sparse(ONE, [1], (1000,), name=f"w{at}"))
    Network.from_bytes(model.SerializeToString(), Limits(structure_bytes=100_000))
    for at in range(3, 30):
        model.graph.sparse_initializer.append(sparse(ONE, [1], (1000,), name=f"w{at}"))
    with pytest.raises(InvalidModel, match="bytes once they are dense"):
        Network.from_bytes(model.SerializeToString(), Limits(structure_bytes=100_000))


def test_an_output_that_is_listed_twice_is_given_once_and_a_note_says_so() -> None:
    text = "g (float[3] x) => (float[3] y, float[3] z, float[3] y) { y = Relu(x) z = Neg(x) }"
    network = network_of(parse_model(f"{HEADER} {text}"))
    assert [port.name for port in network.outputs] == ["y", "z"]
    assert network.notes == ("output 'y' is listed twice, and given once",)


def test_a_branch_may_give_a_value_twice() -> None:
    text = """g (float[3] x, bool c) => (float[3] y, float[3] z) {
        y, z = If(c) <then_branch = t () => (float[3] a, float[3] a) { a = Relu(x) },
                      else_branch = e () => (float[3] b, float[3] d) { b = Neg(x) d = Abs(x) }>
    }"""
    network = network_of(parse_model(f"{HEADER} {text}"))
    evaluator = CorrectedEvaluator(onnx.ModelProto.FromString(network.to_bytes()))
    x = np.array([-1, 0, 2], np.float32)
    for chosen, wanted in ((True, [[0, 0, 2]] * 2), (False, [[1, 0, -2], [1, 0, 2]])):
        found = evaluator.run(None, {"x": x, "c": np.array(chosen)})
        assert [np.asarray(each).tolist() for each in found] == wanted
