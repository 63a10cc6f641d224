"""No integer that OPENVINO computes is beyond what its kernels have."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.runtime.errors import UnsupportedLayers
from tests.unit.plugins.openvino.backend.conftest import Compile, run

CONSTANTS = "int64[1] big = {100000}, int64[1] two = {2}, int64 zero = {0}"
INT = f"f (int64[4] x) => (int64[N] y) <{CONSTANTS}>"
BOUNDED = [
    ("y = Add(x, two)", 2**20),
    ("y = Mul(x, two)", 2**20),
    ("y = Mul(x, big)", None),
    ("s = Mul(x, two) y = Mul(s, s)", None),
    ("s = Mul(x, x) y = Neg(s)", 2**12),
    ("y = Div(x, two)", 2**24),
    ("y = Div(two, x)", None),
    ("y = Mod(x, two)", 2**24),
    ("y = CumSum(x, zero)", 2**20),
    ("y = Max(x, big)", 2**24),
    ("c = Less(x, two) y = Where(c, x, two)", 2**24),
]


@pytest.mark.parametrize(("nodes", "bound"), BOUNDED)
def test_a_request_may_have_integers_up_to_a_bound(
    compile_for: Compile, nodes: str, bound: int | None
) -> None:
    inputs = {"x": np.array([1, -2, 3, 4])}
    if bound is None:
        with pytest.raises(UnsupportedLayers, match="integers"):
            compile_for(f"{INT} {{ {nodes} }}", inputs)
        return
    assert compile_for(f"{INT} {{ {nodes} }}", inputs).bound == bound


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
def test_arithmetic_that_may_saturate_is_refused(compile_for: Compile, kind: str) -> None:
    x = np.ones(2, kind)
    with pytest.raises(UnsupportedLayers, match=f"bits of {kind[0]}"):
        compile_for(f"f ({kind}[2] x) => ({kind}[2] y) {{ y = Add(x, x) }}", {"x": x})


def test_a_table_is_looked_up_with_any_index_in_bounds(compile_for: Compile) -> None:
    text = "f (int64[N] x, float[5,2] t) => (float[N,2] y) { y = Gather(t, x) }"
    inputs = {"x": np.array([4, -5]), "t": np.arange(10, dtype=np.float32).reshape(5, 2)}
    compilation = compile_for(text, inputs)
    assert compilation.bound == 2**24
    assert run(compilation, inputs)["y"].tolist() == [[8, 9], [0, 1]]
