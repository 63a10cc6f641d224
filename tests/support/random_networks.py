"""Random networks, and rules that rewrite them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnxscript.rewriter.pattern import MatchResult, RewriteRuleClassBase

from headrace.runtime.transform.transform import rewriting
from tests.support.model_zoo import model, node, value


class FuseReluRelu(RewriteRuleClassBase):
    def pattern(self, op: Any, x: Any) -> Any:
        return op.Relu(op.Relu(x))

    def rewrite(self, op: Any, x: Any) -> Any:
        return op.Relu(x)


class DecomposeDivide(RewriteRuleClassBase):
    def pattern(self, op: Any, a: Any, b: Any) -> Any:
        return op.Div(a, b)

    def check(self, op: Any, a: Any, b: Any) -> MatchResult:
        floating = a.dtype is not None and a.dtype.is_floating_point()
        return MatchResult() if floating else MatchResult().fail("not floating point")

    def rewrite(self, op: Any, a: Any, b: Any) -> Any:
        return op.Mul(a, op.Reciprocal(b))


RULES = rewriting(FuseReluRelu, DecomposeDivide)


@st.composite
def random_networks(draw: st.DrawFn) -> Any:
    """A graph of a few element-wise layers, each reading earlier values, some named."""
    names = ["x", "z", "w"]
    nodes = []
    for at in range(draw(st.integers(1, 14))):
        op_type = draw(st.sampled_from(["Relu", "Relu", "Identity", "Neg", "Add", "Div"]))
        arity = 2 if op_type in ("Add", "Div") else 1
        read = [draw(st.sampled_from(names)) for _ in range(arity)]
        name = draw(st.sampled_from(["", "", "same", f"n{at}"]))
        nodes.append(node(op_type, read, [f"v{at}"], name=name))
        names.append(f"v{at}")
    produced = names[3:]
    outputs = draw(st.lists(st.sampled_from(produced), min_size=1, max_size=3, unique=True))
    weights = {"w": np.array([[1.5, -2, 3]] * 2, np.float32)}
    inputs = [value("x"), value("z")]
    return model(nodes, inputs, [value(name) for name in outputs], weights)
