"""Pooling with indices on OPENCL, on the device that tinygrad makes of Python itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model
from onnxruntime import InferenceSession

pytest.importorskip("tinygrad", reason="tinygrad is not installed: pip install 'headrace[opencl]'")

from tinygrad.tensor import Tensor

from headrace.plugins.opencl.operators.pooling import max_pool, max_unpool

X = np.random.default_rng(0).permutation(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(np.float32)
WINDOW = "kernel_shape = [2, 3], strides = [2, 2], pads = [0, 1, 1, 0]"
ARGUMENTS: dict[str, Any] = {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [0, 1, 1, 0]}


def expected(nodes: str, outputs: str) -> list[np.ndarray]:
    """What ONNX Runtime makes of the array."""
    text = f"g (float[2,3,4,5] x) => ({outputs}) {{ {nodes} }}"
    model = parse_model(f'<ir_version: 8, opset_import: ["": 17]>{text}')
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, {"x": X})]


@pytest.mark.parametrize("order", [0, 1])
def test_indices_lead_through_the_whole_tensor(order: int) -> None:
    pooled, indices = max_pool(Tensor(X, device="PYTHON"), storage_order=order, **ARGUMENTS)
    nodes = f"y, i = MaxPool<{WINDOW}, storage_order = {order}>(x)"
    y, i = expected(nodes, "float[a,b,c,d] y, int64[a,b,c,d] i")
    assert pooled.tolist() == y.tolist()
    assert indices.tolist() == i.tolist()


def test_what_was_pooled_is_put_back_where_it_was() -> None:
    x = Tensor(X, device="PYTHON")
    arguments: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 1]}
    pooled, indices = max_pool(x, **arguments)
    nodes = """y, i = MaxPool<kernel_shape = [2, 2], strides = [2, 1]>(x)
        z = MaxUnpool<kernel_shape = [2, 2], strides = [2, 1]>(y, i)"""
    (z,) = expected(nodes, "float[a,b,c,d] z")
    assert max_unpool(pooled, indices, **arguments).tolist() == z.tolist()
