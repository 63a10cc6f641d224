"""Rotary embeddings are computed layer by layer, because the operation that OpenVINO makes of one
does not check its sizes.

OpenVINO alone makes that operation of each network here, which is tested too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from tests.support.openvino_alone import alone, kinds

PORTS = "float[A,B,C,D] x, float[E,F,G,H] c, float[I,J,K,L] s"
HALVES = """zero = Constant<value = int64[1] {0}>() half = Constant<value = int64[1] {2}>()
    end = Constant<value = int64[1] {2147483647}>() last = Constant<value = int64[1] {3}>()
    a = Slice(x, zero, half, last) b = Slice(x, half, end, last) n = Neg(b)"""
ROTATION = f"""{HALVES}
    t = Concat<axis = -1>(n, a) p = Mul(x, c) q = Mul(t, s) y = Add(p, q)"""
PAIRS = """split = Constant<value = int64[4] {0, 0, -1, 2}>()
    end = Constant<value = int64[1] {-1}>() pairs = Reshape(x, split)
    a, b = Split<axis = -1, num_outputs = 2>(pairs)
    u = Squeeze(a, end) v = Squeeze(b, end) n = Neg(v) f = Unsqueeze(n, end) g = Unsqueeze(u, end)
    st = Concat<axis = -1>(f, g) whole = Constant<value = int64[3] {0, 0, 4}>()
    t = Reshape(st, whole) p = Mul(x, c) q = Mul(t, s) y = Add(p, q)"""


def network(ports: str = PORTS, body: str = ROTATION) -> onnx.ModelProto:
    kind, rank = ports.partition("[")[0], ports.partition("]")[0].count(",") + 1
    sizes = ",".join(f"O{axis}" for axis in range(rank))
    return parse(f"g ({ports}) => ({kind}[{sizes}] y) {{ {body} }}")


THREE = "float[A,B,C] x, float[E,F,G] c, float[I,J,K] s"
KNOWN = PORTS.replace("D]", "4]").replace("H]", "4]").replace("L]", "4]")
NETWORKS = {
    "free": network(),
    "rows_of_known_length": network(KNOWN),
    "three_axes": network(THREE, ROTATION.replace("{3}", "{2}")),
    "integers": network(PORTS.replace("float", "int32")),
    "half_floats": network(PORTS.replace("float", "float16")),
    "last_operand_first": network(body=ROTATION.replace("Add(p, q)", "Add(q, p)")),
    "divided": network(body=ROTATION.replace("Mul(x, c)", "Div(x, c)")),
    "joined_twice": network(
        body=ROTATION.replace("t = Concat<axis = -1>(n, a)", "o = Concat<axis = -1>(n, a)").replace(
            "p =", "t = Concat<axis = -1>(o) p ="
        )
    ),
    "joined_to_nothing": network(
        KNOWN,
        ROTATION.replace("(n, a)", "(n, a, nothing)").replace(
            " t = C", " nothing = Slice(x, zero, zero, last) t = C"
        ),
    ),
    "of_pairs": network("float[A,B,4] x, float[E,F,4] c, float[I,J,4] s", PAIRS),
}
FITTING = ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4))
UNFITTING = [
    ((1, 3, 5, 4), (2, 3, 5, 4), (1, 3, 5, 4)),
    ((2, 1, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4)),
    ((2, 1, 5, 4), (1, 0, 5, 4), (2, 1, 5, 4)),
    ((2, 2, 5, 4), (2, 2, 5, 1), (2, 2, 5, 4)),
    ((2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 1)),
    ((2, 2, 5, 6), (2, 1, 5, 6), (2, 1, 5, 6)),
    ((2, 2, 5, 2), (2, 1, 5, 4), (2, 1, 5, 4)),
    ((2, 2, 64, 1), (2, 1, 64, 2), (2, 1, 64, 2)),
    ((2, 3, 5, 4), (3, 3, 5, 4), (2, 3, 5, 4)),
]


def values(model: onnx.ModelProto, sizes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    """Values of these sizes for the inputs. An input of fewer axes lacks the first ones."""
    found: dict[str, Any] = {}
    for at, size in zip("xcs", sizes, strict=True):
        (port,) = (each for each in model.graph.input if each.name == at)
        kind = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        shape = size[-len(port.type.tensor_type.shape.dim) :]
        numbers = np.arange(np.prod(shape, dtype=int)) * 7 % 17 - 8
        found[at] = (numbers + (at == "c") * 9).astype(kind).reshape(shape)
    return found


def agree(case: Case, request: InferRequest, feed: dict[str, Any]) -> None:
    """Whether the request is answered rightly, or refused if the values do not fit."""
    try:
        right = case.expected(feed)["y"]
    except Exception:  # noqa: BLE001 - the reference refuses them in several ways
        with pytest.raises(InvalidArgument):
            request.infer(feed)
        return
    found = np.asarray(request.infer(feed)["y"])
    assert found.shape == right.shape
    np.testing.assert_allclose(found, right, rtol=1e-2 if found.dtype == np.float16 else 1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_rotary_embedding_takes_all_sizes_that_onnx_takes(plugin: Plugin, name: str) -> None:
    case = Case("g", NETWORKS[name], {})
    request = InferRequest(plugin.load_network(Load(case.network)))
    for sizes in (FITTING, *UNFITTING):
        feed = values(case.model, sizes)
        known = (port.type.tensor_type.shape.dim[-1].dim_value for port in case.model.graph.input)
        if all(
            size in (0, each.shape[-1]) for size, each in zip(known, feed.values(), strict=True)
        ):
            agree(case, request, feed)


@pytest.mark.parametrize("name", NETWORKS)
def test_openvino_alone_makes_one_operation_of_it(name: str) -> None:
    assert "RoPE" in kinds(alone(NETWORKS[name]))
