"""What constants give is computed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing.case import Case, parse
from tests.unit.plugins.openvino.backend.conftest import Compile, run

CONVOLUTION = (
    "d = Constant<value = float[1,1,2,2] {1, 2, 3, 4}>()"
    " w = Constant<value = float[1,1,1,1] {2}>() c = Conv(d, w)"
)
GATHER = (
    "d = Constant<value = float[1,1,2,2] {1, 2, 3, 4}>()"
    " i = Constant<value = int64[1,1,2,2] {1, 0, 0, 1}>() c = GatherElements<axis = 3>(d, i)"
)
POOL = (
    "d = Constant<value = float[1,1,3,3] {1, 2, 3, 4, 5, 6, 7, 8, 9}>()"
    " c = AveragePool<kernel_shape = [2,2]>(d)"
)
LIST = "s = Constant<value = int64[1] {4}>() l = Reshape(c, s)"
SHAPES = "(float[1,1,2,2] x) => (float[1,1,2,2] y)"
OF_CONSTANTS = {
    "convolution": f"{SHAPES} {{ {CONVOLUTION} y = Mul(c, x) }}",
    "gather": f"{SHAPES} {{ {GATHER} y = Mul(c, x) }}",
    "pool": f"{SHAPES} {{ {POOL} y = Mul(c, x) }}",
    "reshape_after_it": f"(float[4] x) => (float[4] y) {{ {CONVOLUTION} {LIST} y = Mul(l, x) }}",
    "more_after_it": f"{SHAPES} {{ {CONVOLUTION} n = Neg(c) e = Exp(n) y = Mul(e, x) }}",
    "read_twice": f"{SHAPES} {{ {CONVOLUTION} m = Mul(c, x) y = Sub(m, c) }}",
    "given_too": "(float[1,1,2,2] x) => (float[1,1,2,2] y, float[1,1,2,2] c)"
    f" {{ {CONVOLUTION} y = Mul(c, x) }}",
}


@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_what_constants_give_is_the_same_in_every_request(compile_for: Compile, name: str) -> None:
    """A request's products stood where the constant was, and the next one multiplied them."""
    case = Case("f", parse(f"f {OF_CONSTANTS[name]}"), {})
    names = tuple(port.name for port in case.network.outputs)

    def given(factor: int) -> dict[str, Any]:
        shapes = {port.name: (port.shape, port.dtype) for port in case.network.inputs}
        return {
            name: np.full([int(str(size)) for size in shape or ()], factor, dtype.numpy())
            for name, (shape, dtype) in shapes.items()
        }

    compilation = compile_for(case.model, given(2))
    for factor in (2, 3, 5):
        outputs = run(compilation, given(factor), *names)
        for output, expected in case.expected(given(factor)).items():
            np.testing.assert_allclose(outputs[output], expected, rtol=1e-6)
