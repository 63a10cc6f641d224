"""OpenVINO on a processor without AVX, or that it takes for one, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

LOADED = textwrap.dedent("""
    import sys
    from headrace.plugins.openvino.session.session import Runtime
    from headrace.runtime.errors import InvalidModel
    from headrace.testing.case import parse
    from headrace.plugins.openvino.limits.limits import SSE4

    runtime = Runtime()
    if SSE4 not in runtime.capabilities("CPU"):
        print("AVX")
        raise SystemExit
    text = "graph (float[N,T,16] x, float[16] s) => (float[N,T,16] y) { %s }"
    model = runtime.read(parse(text % sys.argv[1]).SerializeToString())
    try:
        runtime.compile(model, "CPU", {})
    except InvalidModel as error:
        print(error.message)
""")
APART = """
    a = Constant<value = int64[1] {-1}>()
    two = Constant<value_float = 2.0>()
    e = Constant<value_float = 0.00001>()
    m = ReduceMean(x, a)
    c = Sub(x, m)
    p = Pow(c, two)
    v = ReduceMean(p, a)
    w = Add(v, e)
    q = Sqrt(w)
    n = Div(c, q)
    y = Mul(n, s)
"""


@pytest.mark.parametrize("nodes", ["y = LayerNormalization(x, s)", APART], ids=["one", "apart"])
def test_a_normalisation_whose_kernel_is_made_in_a_run_is_refused(nodes: str) -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "SSE41"}
    command = [sys.executable, "-c", LOADED, nodes]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    if done.stdout == "AVX\n":
        pytest.skip("this processor has other instructions")
    assert "normalises only tensors of known sizes" in done.stdout
