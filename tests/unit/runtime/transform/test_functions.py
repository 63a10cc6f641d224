"""A function of another version of an operator set is inlined if it means the same in both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.transform.functions import inline_functions
from headrace.testing.case import network_of, parse

_CALL = """g (float[2] x) => (float[m] y) {{ y = mine.f(x) }}
<domain: "mine", opset_import: ["" : {version}]>
f (x) => (y) {{ y = {layer} }}
"""


def network(layer: str, version: int) -> ir.Model:
    model = parse(_CALL.format(layer=layer, version=version))
    model.opset_import[0].version = 18
    model.opset_import.add(domain="mine", version=1)
    return network_of(model).model


@pytest.mark.parametrize("version", [14, 16, 18, 20])
def test_a_layer_that_has_not_changed_between_the_versions(version: int) -> None:
    model = network("Add(x, x)", version)
    assert inline_functions(model)
    assert [node.op_type for node in model.graph] == ["Add"]
    assert model.opset_imports[""] == 18
    x = np.ones(2, np.float32)
    found: Any = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    assert found[0].tolist() == [2, 2]


def test_one_that_has_changed_is_refused_with_the_way_out() -> None:
    with pytest.raises(FailedPrecondition, match="convert_version=True"):
        inline_functions(network("ReduceMean<axes = [0]>(x)", 13))
