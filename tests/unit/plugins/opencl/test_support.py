"""What OPENCL says of layers whose shapes are not known before a request."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from headrace.testing.case import Case, parse

pytest.importorskip("tinygrad", reason="tinygrad is not installed: pip install 'headrace[opencl]'")

from headrace.plugins.opencl.support import LayerSupport
from headrace.runtime.transform.trials import Trials


def reason(operator: str) -> str | None:
    """Why a layer is refused; nothing is tried."""
    text = f"f (float[N,C,H,W] x) => (float[N,C,H,W] y) {{ y = {operator}(x) }}"
    model = Case("f", parse(text), {}).network.model
    (node,) = model.graph
    return LayerSupport(model, {int(ir.DataType.FLOAT)}, Trials(lambda _: "tried"))(node)


def test_one_with_an_attribute_that_is_not_computed_is_refused() -> None:
    found = reason("MeanVarianceNormalization<axes = [1]>")
    assert found is not None
    assert "axes" in found


@pytest.mark.parametrize(
    "operator", ["MeanVarianceNormalization", "LeakyRelu<alpha = 0.5>", "Softmax<axis = 1>"]
)
def test_one_with_those_that_are_is_not(operator: str) -> None:
    assert reason(operator) is None
