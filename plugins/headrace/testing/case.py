"""A network with inputs, and the reference's outputs for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
from onnx.reference import ReferenceEvaluator

from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Array, Value

_DOMAINS: Final = (("ai.onnx.contrib", 1), ("ai.onnx.ml", 3), ("com.microsoft", 1))


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
        return network_of(self.model)

    def expected(self, inputs: Mapping[str, Value] | None = None) -> dict[str, Any]:
        """The outputs by name that onnx's reference evaluator computes in this process."""
        evaluator = ReferenceEvaluator(self.model)
        feeds = self.inputs if inputs is None else inputs
        absent = {name: None for name in evaluator.input_names if name not in evaluator.rt_inits_}
        outputs = evaluator.run(None, {**absent, **feeds})
        return dict(zip(evaluator.output_names, outputs, strict=True))


def parse(
    text: str,
    weights: Mapping[str, Array] | None = None,
    *,
    opset: int = 21,
    ranks: bool = True,
) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form.

    Args:
        text: ``name (inputs) => (outputs) { nodes }``, with functions after it if there are any.
        weights: become initialisers.
        opset: of the default domain.
        ranks: whether the graph's inputs and outputs keep the shapes that the text gives them.

    Operators of the domain ``headrace.test`` exist nowhere but in the model itself.
    """
    further = "".join(f', "{name}": {version}' for name, version in _DOMAINS if name in text)
    header = f'<ir_version: 10, opset_import: ["": {opset}, "headrace.test": 1{further}]>'
    model = onnx.parser.parse_model(header + text)
    for name, array in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    if not ranks:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.ClearField("shape")
    return model


def network_of(
    model: str | onnx.ModelProto,
    weights: Mapping[str, Array] | None = None,
    *,
    opset: int = 21,
    ranks: bool = True,
) -> Network:
    """The network of a model, or of a text as `parse` takes it."""
    if isinstance(model, str):
        model = parse(model, weights, opset=opset, ranks=ranks)
    return Network.from_bytes(model.SerializeToString())
