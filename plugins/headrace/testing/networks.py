"""Tiny networks of every kind that a server meets, each with inputs for it.

The weights are random, since a network of equal weights computes the same from any input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.runtime.network.values import Array, Value
from headrace.testing.case import Case, parse


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """float32 from a normal distribution, the same for the same arguments."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * scale
    return np.asarray(values, dtype=np.float32)


def strings(*values: str | bytes) -> Array:
    """A one-dimensional tensor of strings."""
    return np.array(values, dtype=object)


def add() -> Case:
    """Two inputs of fixed shape, one layer called ``sum``."""
    model = parse("add (float[2,3] x, float[2,3] y) => (float[2,3] z) { [sum] z = Add(x, y) }")
    return Case("add", model, {"x": random(2, 3), "y": random(2, 3, seed=1)})


def mlp() -> Case:
    """Three dense layers over a batch of any size; two outputs."""
    text = """mlp (float[N,8] x) => (float[N,4] scores, int64[N] label) {
        [dense1] a = Gemm(x, w1, b1)
        [relu1] b = Relu(a)
        [dense2] c = Gemm(b, w2, b2)
        [relu2] d = Relu(c)
        [dense3] e = MatMul(d, w3)
        [softmax] scores = Softmax<axis = 1>(e)
        [argmax] label = ArgMax<axis = 1, keepdims = 0>(scores)
    }"""
    weights = {
        "w1": random(8, 16),
        "b1": random(16),
        "w2": random(16, 16),
        "b2": random(16, seed=1),
        "w3": random(16, 4),
    }
    return Case("mlp", parse(text, weights), {"x": random(3, 8)})


def image() -> Case:
    """A small residual network on NCHW images, batch of any size."""
    text = """image (float[N,3,32,32] x) => (float[N,10] scores) {
        [conv0] a0 = Conv<kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]>(x, w0)
        [norm0] n0 = BatchNormalization(a0, scale, bias, mean, variance)
        [relu0] r0 = Relu(n0)
        [pool0] p0 = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r0)
        [conv1] a1 = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(p0, w1)
        [relu1] r1 = Relu(a1)
        [conv2] a2 = Conv<kernel_shape = [1,1]>(r1, w2)
        [shortcut] s = Add(a2, p0)
        [relu2] r2 = Relu(s)
        [pool1] p1 = GlobalAveragePool(r2)
        [flatten] f = Flatten(p1)
        [dense] scores = Gemm<transB = 1>(f, w3, b3)
    }"""
    weights = {
        "w0": random(8, 3, 3, 3, scale=0.3),
        "w1": random(8, 8, 3, 3, scale=0.2),
        "w2": random(8, 8, 1, 1, scale=0.3),
        "w3": random(10, 8),
        "b3": random(10),
        "scale": random(8),
        "bias": random(8, seed=1),
        "mean": random(8, seed=2),
        "variance": random(8, seed=3) ** 2,
    }
    return Case("image", parse(text, weights), {"x": random(2, 3, 32, 32)})


def transformer() -> Case:
    """One block of attention with two heads and a gated feed-forward layer; batch and sequence of
    any size."""
    text = """transformer (float[B,S,16] x) => (float[B,S,16] y) {
        [norm1] n = LayerNormalization<axis = -1>(x, g1, c1)
        [qkv] qkv = MatMul(n, wqkv)
        [split] q, k, v = Split<axis = -1, num_outputs = 3>(qkv)
        heads = Constant<value = int64[4] {0, 0, 2, 8}>()
        merged = Constant<value = int64[3] {0, 0, 16}>()
        [q4] q1 = Reshape(q, heads)
        [k4] k1 = Reshape(k, heads)
        [v4] v1 = Reshape(v, heads)
        [qt] q2 = Transpose<perm = [0,2,1,3]>(q1)
        [kt] k2 = Transpose<perm = [0,2,3,1]>(k1)
        [vt] v2 = Transpose<perm = [0,2,1,3]>(v1)
        [dots] d = MatMul(q2, k2)
        [divide] s = Div(d, root)
        [softmax] p = Softmax<axis = -1>(s)
        [mix] m = MatMul(p, v2)
        [mt] m1 = Transpose<perm = [0,2,1,3]>(m)
        [m3] m2 = Reshape(m1, merged)
        [out] o = MatMul(m2, wo)
        [skip1] r = Add(x, o)
        [norm2] n2 = LayerNormalization<axis = -1>(r, g2, c2)
        [up] u = MatMul(n2, wu)
        [sigmoid] gate = Sigmoid(u)
        [silu] h = Mul(u, gate)
        [down] f = MatMul(h, wd)
        [skip2] y = Add(r, f)
    }"""
    weights = {
        "wqkv": random(16, 48, scale=0.25),
        "wo": random(16, 16, scale=0.25),
        "wu": random(16, 32, scale=0.25),
        "wd": random(32, 16, scale=0.25),
        "root": np.array([2.8284271], np.float32),
        "g1": random(16),
        "c1": random(16, seed=1),
        "g2": random(16, seed=2),
        "c2": random(16, seed=3),
    }
    return Case("transformer", parse(text, weights), {"x": random(2, 5, 16)})


def recurrent() -> Case:
    """An LSTM over a sequence of any length."""
    text = """recurrent (float[S,B,4] x) => (float[S,1,B,3] y, float[1,B,3] h) {
        [lstm] y, h = LSTM<hidden_size = 3>(x, w, r, b)
    }"""
    weights = {"w": random(1, 12, 4), "r": random(1, 12, 3), "b": random(1, 24)}
    return Case("recurrent", parse(text, weights), {"x": random(5, 2, 4)})


def divide() -> Case:
    """7 / 2 in floating point and in integers, where the quotient is 3."""
    text = """divide (float[2] x, float[2] y, int64[2] i, int64[2] j)
        => (float[2] a, int64[2] b) { [float] a = Div(x, y)
        [integer] b = Div(i, j) }"""
    inputs: dict[str, Value] = {
        "x": np.array([7, 1], np.float32),
        "y": np.array([2, 3], np.float32),
        "i": np.array([7, -8], np.int64),
        "j": np.array([2, 2], np.int64),
    }
    return Case("divide", parse(text), inputs)


def relu_relu() -> Case:
    """A Relu of a Relu of a sum."""
    text = """relu_relu (float[4] x, float[4] y) => (float[4] z) {
        [sum] a = Add(x, y)
        [inner] b = Relu(a)
        [outer] z = Relu(b)
    }"""
    return Case("relu_relu", parse(text), {"x": random(4), "y": random(4, seed=1)})


def leftover() -> Case:
    """A layer and a constant whose results are not read, beside a layer whose result is."""
    text = """leftover (float[4] x) => (float[4] y) {
        [unread_constant] c = Constant<value = float {1.5}>()
        [unread] u = Neg(x)
        [read] y = Relu(x)
    }"""
    return Case("leftover", parse(text), {"x": random(4)})


def reshape() -> Case:
    """A layer that has nothing to compute: a device may be tempted to give its input back."""
    text = """reshape (float[2,6] x) => (float[12] y) {
        flat = Constant<value = int64[1] {-1}>()
        [reshape] y = Reshape(x, flat)
    }"""
    return Case("reshape", parse(text), {"x": random(2, 6)})


def same_type(size: str = "N") -> Case:
    """A cast that has nothing to compute. `size` is that of the input, a number or a name."""
    text = f"""same_type (float[{size}] x) => (float[M] y, float[M] z) {{
        [same] y = Cast<to = 1>(x)
        [negative] z = Neg(x)
    }}"""
    return Case("same_type", parse(text), {"x": random(6)})


def scatter(size: str = "3", reduction: str = "none") -> Case:
    """Seems to write to one element of its input, but the result is a tensor of its own.

    Args:
        size: the size of the input; a number or a name.
    """
    text = f"""scatter (float[{size}] x, int64[1,1] at, float[1] update) => (float[{size}] y) {{
        [write] y = ScatterND<reduction = "{reduction}">(x, at, update)
    }}"""
    inputs: dict[str, Value] = {
        "x": random(3),
        "at": np.array([[1]], np.int64),
        "update": random(1, seed=1),
    }
    return Case(f"scatter_{reduction}_{size}", parse(text), inputs)


def string_join() -> Case:
    """Joins texts of any number; nothing but strings."""
    text = """string_join (string[N] x, string[N] y) => (string[N] z) {
        [join] z = StringConcat(x, y)
    }"""
    inputs = {"x": strings("a", "", "größer"), "y": strings("b", "c", " gleich")}
    return Case("string_join", parse(text), inputs)


def string_identity() -> Case:
    """Passes texts through a Reshape. Most devices have one for strings."""
    text = """string_identity (string[N,2] x) => (string[M] y) {
        flat = Constant<value = int64[1] {-1}>()
        [reshape] y = Reshape(x, flat)
    }"""
    inputs = {"x": strings("a", "", "größer", "x y").reshape(2, 2)}
    return Case("string_identity", parse(text), inputs)


def branch(condition: bool = True) -> Case:
    """An If whose branches use a value from around them."""
    text = """branch (bool condition, float[3] x) => (float[3] y) {
        [outside] a = Add(x, x)
        [choose] y = If (condition) <
            then_branch = taken () => (float[3] t) { [times] t = Mul(a, x) },
            else_branch = other () => (float[3] e) { [minus] e = Sub(a, x) }
        >
    }"""
    return Case(
        f"branch_{condition}".lower(),
        parse(text),
        {"condition": np.array(condition), "x": random(3)},
    )


def loop() -> Case:
    """Doubles a value as often as it is told, and collects what it saw."""
    text = """loop (int64 times, float[2] x) => (float[2] y, float[K,2] seen) {
        yes = Constant<value = bool {1}>()
        [repeat] y, seen = Loop(times, yes, x) <body = body
            (int64 i, bool go, float[2] v) => (bool more, float[2] next, float[2] now) {
                [same] more = Identity(go)
                [double] next = Add(v, v)
                [keep] now = Identity(next)
            }
        >
    }"""
    return Case("loop", parse(text), {"times": np.array(3), "x": random(2)})


def scan() -> Case:
    """The running sum along the first axis."""
    text = """scan (float[2] start, float[N,2] x) => (float[2] total, float[N,2] sums) {
        [scan] total, sums = Scan<num_scan_inputs = 1, body = body
            (float[2] before, float[2] row) => (float[2] after, float[2] out) {
                [sum] after = Add(before, row)
                [keep] out = Identity(after)
            }>(start, x)
    }"""
    return Case("scan", parse(text), {"start": np.zeros(2, np.float32), "x": random(4, 2)})


def sequence() -> Case:
    """A sequence of tensors in, one of its elements and the sequence with one more out."""
    text = """sequence (seq(float[2]) x, int64 at) => (float[2] y, seq(float[2]) z) {
        [at] y = SequenceAt(x, at)
        [insert] z = SequenceInsert(x, y)
    }"""
    return Case("sequence", parse(text), {"x": [random(2), random(2, seed=1)], "at": np.array(1)})


def optional(present: bool = True) -> Case:
    """An optional tensor in; out comes whether it was there."""
    text = """optional (optional(float[2]) x) => (bool y) { [has] y = OptionalHasElement(x) }"""
    inputs = {"x": random(2)} if present else {}
    return Case(f"optional_{'present' if present else 'absent'}", parse(text), inputs)


def local_function(body: str = "Add(v, v)") -> Case:
    """A call of a function that the model itself defines; its `body` is one operator of ``v``."""
    text = f"""local_function (float[3] x) => (float[3] y) {{ [call] y = headrace.test.Own(x) }}
    <domain: "headrace.test", opset_import: ["": 21]>
    Own (v) => (w) {{ w = {body} }}"""
    return Case("local_function", parse(text), {"x": random(3)})


def function_of_another_operator_set() -> Case:
    """A call of a function that imports a newer operator set than the model."""
    text = """newer (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y) {
        [call] y = headrace.test.Own(x, w)
    }
    <domain: "headrace.test", opset_import: ["": 23]>
    Own (v, u) => (c) { c = Conv(v, u) }"""
    return Case("newer", parse(text), {"x": random(1, 1, 4, 4), "w": random(1, 1, 3, 3)})


def endless() -> Case:
    """A Loop that never ends by itself. Only a cancel ends it."""
    text = """endless (float[2] x) => (float[2] y) {
        yes = Constant<value = bool {1}>()
        none = Constant<value = int64 {9223372036854775807}>()
        [forever] y = Loop(none, yes, x) <body = body
            (int64 i, bool go, float[2] v) => (bool more, float[2] next) {
                [same] more = Identity(go)
                [flip] next = Neg(v)
            }
        >
    }"""
    return Case("endless", parse(text), {"x": random(2)})


def fragile() -> Case:
    """Picks one of five; an index out of bounds fails, which only the run finds."""
    text = """fragile (float[5] x, int64[1] at) => (float[1] y) { [pick] y = Gather(x, at) }"""
    return Case("fragile", parse(text), {"x": random(5), "at": np.array([4], np.int64)})


def unknown_operators() -> Case:
    """Two layers that no device has, between two that every one has."""
    text = """unknown (float[2] x) => (float[2] y) {
        [first] a = Add(x, x)
        [strange] b = headrace.test.Strange(a)
        [stranger] c = headrace.test.Stranger(b)
        [last] y = Mul(c, c)
    }"""
    return Case("unknown", parse(text), {"x": random(2)})


def typed(dtype: Any, name: str, tolerance: float = 0.0) -> Case:
    """A sum of two tensors of one dtype; for bool, their conjunction.

    Args:
        name: ONNX's, as ``float16``.
    """
    operator = "And" if name == "bool" else "Add"
    text = f"typed ({name}[3] x, {name}[3] y) => ({name}[3] z) {{ [op] z = {operator}(x, y) }}"
    x, y = np.array([1, 0, 3]).astype(dtype), np.array([2, 0, 1]).astype(dtype)
    return Case(name, parse(text), {"x": x, "y": y}, tolerance)


def control_flow() -> tuple[Case, ...]:
    """If, Loop and Scan."""
    return branch(True), branch(False), loop(), scan()
