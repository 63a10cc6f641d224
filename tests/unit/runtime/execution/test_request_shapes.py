"""The shapes of a network's requests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.execution.request_shapes import MOST, RequestShapes
from headrace.runtime.network.network import Port

OPEN = Port("x", ir.DataType.FLOAT, ("n", 4))
FIXED = Port("m", ir.DataType.FLOAT, (2,))


def counted(*requests: dict[str, Any]) -> list[Any]:
    shapes = RequestShapes([OPEN, FIXED])
    for inputs in requests:
        shapes.add(shapes.of(inputs))
    return [json.loads(text) for text in shapes.to_texts()]


def request(rows: int) -> dict[str, Any]:
    return {"x": np.zeros((rows, 4), np.float32), "m": np.zeros(2, np.float32)}


def test_those_that_come_most_often_are_first() -> None:
    assert counted(request(1), request(3), request(3)) == [
        {"requests": 2, "shapes": {"x": [3, 4], "m": [2]}},
        {"requests": 1, "shapes": {"x": [1, 4], "m": [2]}},
    ]


def test_what_is_no_tensor_has_no_shape() -> None:
    assert counted({"x": [np.zeros(1)]}) == [{"requests": 1, "shapes": {}}]


def test_a_client_cannot_have_more_than_so_many_kept() -> None:
    assert len(counted(*map(request, range(3 * MOST)))) <= MOST


@pytest.mark.parametrize(
    ("inputs", "counts"),
    [
        ([OPEN], True),
        ([FIXED], False),
        ([FIXED, OPEN], True),
        ([Port("x", ir.DataType.FLOAT, None)], True),
        ([Port("x", ir.DataType.FLOAT, ("n",), optional=True)], False),
        ([], False),
        ([OPEN] * 1000, False),
    ],
)
def test_networks_of_fixed_sizes_or_many_inputs_cost_nothing(
    inputs: list[Port], counts: bool
) -> None:
    assert RequestShapes(inputs).counts is counts
