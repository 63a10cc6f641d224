"""A network with inputs, and the reference's outputs for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.numpy_helper
import onnx.parser
from onnx.reference import ReferenceEvaluator

from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Array, Value


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A model and example inputs by name.

    Attributes:
        tolerance: the error that arithmetic in few bits may add to the device's own tolerance. It
            is relative, and absolute in units of the largest output.
    """

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Value]
    tolerance: float = 0.0

    def __str__(self) -> str:
        return self.name

    @property
    def network(self) -> Network:
        """A fresh network for each caller."""
        return Network.from_bytes(self.model.SerializeToString())

    def expected(self, inputs: Mapping[str, Value] | None = None) -> dict[str, Any]:
        """The outputs by name that onnx's reference evaluator computes in this process."""
        evaluator = ReferenceEvaluator(self.model)
        feeds = self.inputs if inputs is None else inputs
        absent = {name: None for name in evaluator.input_names if name not in evaluator.rt_inits_}
        outputs = evaluator.run(None, {**absent, **feeds})
        return dict(zip(evaluator.output_names, outputs, strict=True))


def parse(text: str, weights: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form, opset 21.

    Args:
        text: ``name (inputs) => (outputs) { nodes }``, with functions after it if there are any.
        weights: become initialisers.

    Operators of the domain ``headrace.test`` exist nowhere but in the model itself.
    """
    header = '<ir_version: 10, opset_import: ["": 21, "headrace.test": 1]>'
    model = onnx.parser.parse_model(header + text)
    for name, array in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model
