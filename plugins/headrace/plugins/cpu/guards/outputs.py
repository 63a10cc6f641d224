"""Makes a run fail if one of its outputs has too many texts.

ONNX Runtime makes a Python object of each text, and no other thread of the process runs meanwhile.
A million take a tenth of a second, and a request of a few bytes may ask a Tile for any number.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.backend.guard_reasons import MOST_TEXTS
from headrace.plugins.cpu.guards.guard_layers import Guard, GuardContext
from headrace.runtime.network.shapes.ledger import AT_MOST

_LESS_TAKES_INTEGERS: Final = 9


def guard_texts(model: ir.Model, network: GuardContext) -> None:
    """Guards each output of the network that is a tensor of texts."""
    outputs, texts = model.graph.outputs, ir.TensorType(ir.DataType.STRING)
    for value in dict.fromkeys(outputs):
        node = value.producer()
        if node is None or value.type != texts or network.opset < _LESS_TAKES_INTEGERS:
            continue
        guard = Guard(node, network, body=model.graph)
        if guard.judged("count", (AT_MOST, network.sizes.count(value), MOST_TEXTS)):
            continue
        number, truth = (ir.TensorType(dtype) for dtype in (ir.DataType.INT64, ir.DataType.BOOL))
        count = guard.layer("Size", value, type=number)
        most = guard.constant(np.array(MOST_TEXTS + 1))
        guarded = guard.only_if(value, guard.layer("Less", count, most, type=truth), "count")
        value.name, guarded.name = guarded.name, value.name
        for at, output in enumerate(outputs):
            if output is value:
                outputs[at] = guarded
