"""OpenVINO's loops that have no iterations, after requests that had some."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import UnsupportedLayers
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest

ONE = "y = Loop({count}, {going}, x) <body = b (int64 i, bool c, T v) => (bool d, T w) {{ {0} }}>"
TWO = """y, z = Loop({count}, {going}, x, o) <body = b (int64 i, bool c, T v, T p)
    => (bool d, T w, T q) {{ {0} }}>"""
BODIES = {
    "an outer value": (ONE, "d = Identity(c) w = Identity(o)"),
    "computed of an outer value": (ONE, "d = Identity(c) w = Neg(o)"),
    "the number of the turn": (ONE, "d = Identity(c) t = CastLike(i, o) w = Mul(o, t)"),
    "read": (ONE, "d = Identity(c) w = Neg(v)"),
    "passed on": (ONE, "d = Identity(c) w = Identity(v)"),
    "read for its shape": (ONE, "d = Identity(c) s = Shape(v) w = Reshape(o, s)"),
    "swapped": (TWO, "d = Identity(c) w = Identity(p) q = Identity(v)"),
    "one value for both": (TWO, "d = Identity(c) w = Neg(p) q = Neg(p)"),
    "one unread": (TWO, "d = Identity(c) w = Neg(o) q = Neg(p)"),
}


def case_of(body: str, kind: str, count: str = "n", going: str = "go") -> Case:
    loop, nodes = BODIES[body]
    outputs = f"({kind} y)" if loop is ONE else f"({kind} y, {kind} z)"
    text = f"""f ({kind} x, {kind} o, int64 n, bool go) => {outputs} {{
        yes = Constant<value = bool {{1}}>()
        no = Constant<value = bool {{0}}>()
        none = Constant<value = int64 {{0}}>()
        {loop.replace("T ", f"{kind} ").format(nodes, count=count, going=going)}
    }}"""
    return Case("f", parse(text), {})


def given(x: Any, count: int, *, going: bool = True) -> dict[str, Any]:
    return {"x": x, "o": np.asarray(7 * x + 4242), "n": np.array(count), "go": np.array(going)}


@pytest.mark.parametrize("kind", ["float[40,120]", "float[2]", "float", "float[N,M]", "int32[N,M]"])
@pytest.mark.parametrize("body", BODIES)
def test_the_state_stays_what_it_was_before(plugin: Plugin, body: str, kind: str) -> None:
    case = case_of(body, kind)
    request = InferRequest(plugin.load_network(Load(case.network, {"NUM_STREAMS": "1"})))
    known: dict[str, tuple[int, ...]] = {"float[40,120]": (40, 120), "float[2]": (2,), "float": ()}
    shapes = [known[kind]] if kind in known else [(3, 5), (40, 120)]
    dtype = np.int32 if kind.startswith("int32") else np.float32
    for number, count in enumerate([0, 2, 0, 3, 0, 1, 0]):
        for going in (True, False):
            x = np.full(shapes[number % len(shapes)], number + 1, dtype)
            inputs = given(x, count, going=going)
            found, expected = request.infer(inputs), case.expected(inputs)
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value, f"{number} {going} {name}")


@pytest.mark.parametrize("going", ["yes", "go"])
@pytest.mark.parametrize("body", BODIES)
def test_so_it_does_if_there_never_is_an_iteration(plugin: Plugin, body: str, going: str) -> None:
    case = case_of(body, "float[N,M]", "none", going)
    request = InferRequest(plugin.load_network(Load(case.network, {"NUM_STREAMS": "1"})))
    for shape in ((3, 5), (40, 120), (3, 5)):
        inputs = given(np.ones(shape, np.float32), 3)
        found, expected = request.infer(inputs), case.expected(inputs)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("size", ["4", "T"])
@pytest.mark.parametrize("made", ["Identity(e)", "Reshape(e, shape)", "Neg(minus)", "Relu(e)"])
def test_a_state_that_is_an_element_of_the_sequence_stays_until_it_is_read(
    plugin: Plugin, made: str, size: str
) -> None:
    text = f"""f (float[2] s, float[{size},2] x) => (float[2] y, float[{size},2] z) {{
        y, z = Scan<num_scan_inputs = 1, body = b (float[2] t, float[2] e)
            => (float[2] u, float[2] o) {{
                shape = Constant<value_ints = [2]>() minus = Neg(e)
                u = {made} o = Sub(t, e) }}>(s, x) }}"""
    case = Case("f", parse(text), {})
    request = InferRequest(plugin.load_network(Load(case.network, {"NUM_STREAMS": "1"})))
    for count in (4, 4 if size == "4" else 2, 4):
        x = np.arange(1, 2 * count + 1, dtype=np.float32).reshape(count, 2) ** 2
        inputs = {"s": np.full(2, 100, np.float32), "x": x}
        found, expected = request.infer(inputs), case.expected(inputs)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_a_loop_that_openvino_removes_with_its_inputs_is_refused(plugin: Plugin) -> None:
    case = case_of("read", "float[N,M]", "n", "no")
    with pytest.raises(UnsupportedLayers, match="cannot be told which inputs"):
        plugin.load_network(Load(case.network))


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """Memory that nobody has written is not zero."""
    libc, perturb = ctypes.CDLL(None), -6  # M_PERTURB of mallopt(3)
    if not hasattr(libc, "gnu_get_libc_version"):
        pytest.skip("the C library is not glibc")
    libc.mallopt(perturb, 90)
    yield
    libc.mallopt(perturb, 0)


@pytest.mark.usefixtures("filled_memory")
def test_a_loop_without_turns_breaks_no_condition_of_its_turns(plugin: Plugin) -> None:
    """Where there were none, the kernel gave what the memory held before."""
    text = """f (int64[1] n) => (int64 y, int64[K] z) <int64 s = {-1}, bool c = {1}> {
        y, z = Loop(n, c, s) <body = b (int64 i, bool d, int64 v) => (bool e, int64 w, int64 o) {
            e = Identity(d) w = Identity(i) o = Identity(i) }> }"""
    for _ in range(4):
        request = InferRequest(plugin.load_network(Load(Case("f", parse(text), {}).network)))
        for count in (0, 4, 0, 3):
            found = request.infer({"n": np.array([count])})
            np.testing.assert_array_equal(np.asarray(found["y"]), count - 1)
            np.testing.assert_array_equal(np.asarray(found["z"]), np.arange(count))
