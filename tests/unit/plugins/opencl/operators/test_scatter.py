"""Updates at indices on OPENCL, on the device that tinygrad makes of Python itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.helper import make_graph, make_node
from onnx.onnx_pb import ValueInfoProto
from onnx.reference import ReferenceEvaluator

pytest.importorskip("tinygrad", reason="tinygrad is not installed: pip install 'headrace[opencl]'")

from tinygrad.tensor import Tensor

from headrace.plugins.opencl.operators.scatter import scatter_nd, tensor_scatter


def expected(operator: str, *arrays: np.ndarray, **attributes: Any) -> np.ndarray:
    """What onnx's reference makes of them."""
    names = [f"x{at}" for at in range(len(arrays))]
    node = make_node(operator, names, ["y"], **attributes)
    inputs = [ValueInfoProto(name=name) for name in names]
    graph = make_graph([node], "g", inputs, [ValueInfoProto(name="y")])
    reference = ReferenceEvaluator(graph, opsets={"": 24})
    (y,) = reference.run(None, dict(zip(names, arrays, strict=True)))
    return np.asarray(y)


def on_device(*arrays: np.ndarray) -> list[Tensor]:
    return [Tensor(array, device="PYTHON").realize() for array in arrays]


X = np.arange(12).reshape(2, 3, 2)
BY_ROW = np.array([[0, 1], [-1, -3]])
BY_ELEMENT = np.array([[[1, 2, 0]], [[0, 0, -1]]])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("indices", [BY_ROW, BY_ELEMENT, np.array([[1]]), np.zeros((0, 1), int)])
def test_updates_are_put_where_indices_lead_and_the_data_stay(
    indices: np.ndarray, reduction: str
) -> None:
    places = X[tuple(np.moveaxis(indices, -1, 0))]
    updates = np.arange(5, 5 + places.size).reshape(places.shape)
    x, at, new = on_device(X, indices, updates)
    y = scatter_nd(x, at, new, reduction)
    wanted = expected("ScatterND", X, indices, updates, reduction=reduction)
    assert y.tolist() == wanted.tolist()
    assert x.tolist() == X.tolist()


def test_updates_of_one_place_come_together() -> None:
    x, at, new = on_device(np.zeros(2), np.array([[1], [1], [-1]]), np.array([1.0, 2.0, 4.0]))
    assert scatter_nd(x, at, new, "add").tolist() == [0, 7]


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(("axis", "shape"), [(-2, (2, 3, 4, 2)), (1, (2, 4, 3))])
def test_a_cache_is_written_from_the_index_of_each_element_on(
    mode: str, axis: int, shape: tuple[int, ...]
) -> None:
    cache = np.random.default_rng(0).standard_normal(shape)
    update = np.random.default_rng(1).standard_normal(shape).take([0, 1], axis)
    first = np.array([1, 3 if mode == "circular" else 2])
    x, new, at = on_device(cache, update, first)
    y = tensor_scatter(x, new, at, axis=axis, mode=mode)
    wanted = expected("TensorScatter", cache, update, first, axis=axis, mode=mode)
    assert y.tolist() == wanted.tolist()
    assert x.tolist() == cache.tolist()


def test_without_indices_it_is_written_from_the_start() -> None:
    x, new = on_device(np.zeros((1, 3, 1)), np.ones((1, 2, 1)))
    y = tensor_scatter(x, new)
    assert y.flatten().tolist() == [1, 1, 0]
