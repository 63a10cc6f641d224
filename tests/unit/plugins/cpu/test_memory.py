"""What a session does about memory that the machine does not have."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.network.network import Network
from headrace.testing.case import parse
from headrace.testing.infer_request import InferRequest

NETWORKS = {
    "filled": ("(int64[R] x) => (float[] y) { y = ConstantOfShape(x) }", [10, 6] * 8 + [10]),
    "repeated": (
        "(int64[R] x) => (float[] y) { c = Constant<value = float {1}>() y = Expand(c, x) }",
        [2**20, 2**20, 2**10],
    ),
    "counted": (
        "(int64[R] x) => (int64[] y) { a = Constant<value = int64 {0}>()"
        " d = Constant<value = int64 {1}>() b = ReduceProd<keepdims = 0>(x) y = Range(a, b, d) }",
        [2**20, 2**20, 2**10],
    ),
}


def mapped_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_request_after_one_that_got_no_memory_takes_no_more_than_it_needs(
    plugin: Plugin, name: str
) -> None:
    """ONNX Runtime tried for as much as there is, and kept it: 23 GB for a single number."""
    text, huge = NETWORKS[name]
    model = parse(f"f {text}").SerializeToString()
    request = InferRequest(plugin.load_network(Load(Network.from_bytes(model))))
    before = mapped_bytes()
    for _ in range(2):
        with pytest.raises(ResourceExhausted, match="no memory for the request"):
            request.infer({"x": np.array(huge)})
        assert request.infer({"x": np.array([3])})["y"].size == 3  # type: ignore[union-attr]
        assert mapped_bytes() - before < 2**29
