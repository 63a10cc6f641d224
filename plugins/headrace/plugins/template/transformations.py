"""Graph transformations that suit this device: rewrite rules, applied wherever they match."""

from typing import Any

from onnxscript.rewriter.pattern import MatchResult, RewriteRuleClassBase

from headrace.sdk import rewriting


class DecomposeDivide(RewriteRuleClassBase):
    """Makes x / y into x · y⁻¹, but not for integers: 7 / 2 is 3, and 2⁻¹ would be 0."""

    def pattern(self, op: Any, x: Any, y: Any) -> Any:
        return op.Div(x, y)

    def check(self, op: Any, x: Any, y: Any) -> MatchResult:
        floating = y.dtype is not None and y.dtype.is_floating_point()
        return MatchResult() if floating else MatchResult().fail("not floating point")

    def rewrite(self, op: Any, x: Any, y: Any) -> Any:
        return op.Mul(x, op.Reciprocal(y))


class FuseReluRelu(RewriteRuleClassBase):
    """Fuses two Relus in a row into one, because the second one changes nothing."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Relu(op.Relu(x))

    def rewrite(self, op: Any, x: Any) -> Any:
        return op.Relu(x)


TRANSFORMATIONS = (rewriting(DecomposeDivide, FuseReluRelu),)
