"""What OpenVINO takes from a request without a look: OPENVINO looks, and a request fails that would
read beyond a tensor, or get what nobody has written.

Each network runs with values that are right, against onnx's reference, then with some that are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.plugins.openvino.compiler import Compiler
from headrace.plugins.openvino.guards import guards
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.session import session
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument, UnsupportedLayers
from headrace.testing.case import Case, parse
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

Inputs: TypeAlias = dict[str, Any]


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


def indices(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def points(*values: int) -> Inputs:
    return {"x": floats(3), "i": indices(*values).reshape(-1, 1)}


def rows(*values: int) -> Inputs:
    return {"x": floats(3, 2), "i": indices(*values)}


def image(height: int, width: int) -> Inputs:
    return {"x": floats(1, 1, height, width)}


def powers(kind: str, base: int, exponent: int) -> Inputs:
    dtype = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float": np.float32}[kind]
    return {"x": indices(base, 1), "y": np.array([exponent, 1], dtype)}


def regions(index: int) -> Inputs:
    corners = np.array([[0, 0, 3, 3], [0, 0, 2, 2]], np.float32)
    return {"x": floats(2, 1, 4, 4), "r": corners, "b": indices(0, index)}


def sequence(length: int, *lengths: int) -> Inputs:
    weights = {"w": floats(1, 6, 2) / 50, "r": floats(1, 6, 2) / 50}
    return {"x": floats(length, 1, 2) / 9, "l": np.array(lengths, np.int32), **weights}


def batch(gates: int, size: int) -> Inputs:
    weights = {name: floats(1, 2 * gates, 2) / 50 for name in ("w", "r")}
    return {"x": floats(3, size, 2) / 9, **weights}


def integers(dtype: type, **values: Any) -> Inputs:
    return {name: np.array(each, dtype) for name, each in values.items()}


def heads(*shapes: tuple[int, ...]) -> Inputs:
    """The query, the keys and the values of Attention."""
    return {name: floats(*shape) / 99 for name, shape in zip("qkv", shapes, strict=True)}


def masked(*shapes: tuple[int, ...], kind: str = "float") -> Inputs:
    """The query, the keys, the values and the mask of Attention."""
    mask = np.ones(shapes[3], bool) if kind == "bool" else np.zeros(shapes[3], np.float32)
    return {**heads(*shapes[:3]), "m": mask}


_Shapes: TypeAlias = tuple[tuple[int, ...], ...]

NEW = "in operator set 24: "
GATHER_ND = "(float[N] x, int64[M,1] i) => (float[K] y) {{ {0} }}"
INDEX = "out of bounds"
NOTHING = "elements for an empty tensor"
ZERO = "an integer by 0"
NEGATIVE = "negative length"
COUNT = "a number of sizes, scales, pads or repeats"
FORGOTTEN = "an empty tensor together with sizes"
CUBIC = "by mode=cubic"
UNLIKE = "do not fit each other"
ZERO_POINT = "gets a zero point other than 0"
FLOAT8 = {"e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
FITS = "does not fit"
NO_FIT = f"{FITS}|conflicts|divide|incompatible|bounds"
EXACT = "an integer that is too large to be exact on this device"


def levels(shape: tuple[int, ...], count: int) -> Inputs:
    """Floats, with a scale and a zero point for each of some."""
    scales = np.arange(1, count + 1, dtype=np.float32) / 2
    return {"x": floats(*shape), "s": scales, "z": np.arange(count, dtype=np.uint8)}


def bytes_and_levels(shape: tuple[int, ...], count: int) -> Inputs:
    given = levels(shape, count)
    return {**given, "x": given["x"].astype(np.uint8)}


def float8s(dtype: type, *zero_points: float) -> Inputs:
    x: Any = np.array([[0, 1, -2], [3, 0.5, 4]], np.float32)
    return {
        "x": x.astype(dtype),
        "s": floats(3) + 1,
        "z": np.array(zero_points, np.float32).astype(dtype),
    }


def positions(*values: int) -> Inputs:
    caches = {"c": floats(3, 2), "s": floats(3, 2) / 9}
    return {"x": floats(1, 2, 2, 4), "p": indices(*values).reshape(1, -1), **caches}


def rotated(cosines: tuple[int, ...], sines: tuple[int, ...]) -> Inputs:
    return {"x": floats(2, 2, 3, 4), "c": floats(*cosines) / 9, "s": floats(*sines) / 9}


def rotated_at(shape: tuple[int, ...], half: int) -> Inputs:
    """Data of a shape, rows of sines and cosines, and the positions of the rows."""
    rows = {"c": floats(50, half) / 999, "s": floats(50, half) / 9999}
    return {"x": floats(*shape) / 99, **rows, "p": indices(9, 47, 36, 24, 11, 12).reshape(2, 3)}


_OF_LISTS = "float[A,B,C]", "float[E,F,G]"
_OF_HEADS = "float[A,B,C,D]", "float[E,F,G,H]"

_UNLIKE_LENGTHS = (
    ((2, 3, 4, 5), (2, 3, 6, 1), (2, 3, 6, 7)),
    ((2, 3, 4, 1), (2, 3, 6, 5), (2, 3, 6, 7)),
)
_UNLIKE_KEYS = (
    ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 1, 7)),
    ((2, 3, 4, 5), (2, 3, 1, 5), (2, 3, 6, 7)),
)
_UNLIKE_HEADS = (*_UNLIKE_LENGTHS, *_UNLIKE_KEYS)
_MASKED: tuple[tuple[str, str, str, str, str], ...] = (
    ("", *_OF_HEADS, "float", "is_causal = 0"),
    ("_of_known_keys", "float[2,3,Q,8]", "float[2,3,6,8]", "bool", "scale = 0.5"),
    ("_causal", *_OF_HEADS, "bool", "is_causal = 1"),
    ("_capped", *_OF_HEADS, "float", "softcap = 1.0"),
)
_OF_PRODUCTS: tuple[tuple[str, str, str, str, tuple[_Shapes, ...]], ...] = (
    ("of_any_size", *_OF_HEADS, "float[I,J,K,L]", _UNLIKE_HEADS),
    ("of_any_keys", "float[2,3,4,5]", "float[2,3,G,5]", "float[2,3,K,7]", _UNLIKE_KEYS),
    ("of_any_length", "float[2,3,4,D]", "float[2,3,6,H]", "float[2,3,6,7]", _UNLIKE_LENGTHS),
    ("of_any_values", "float[2,3,4,5]", "float[2,3,6,5]", "float[2,3,K,7]", _UNLIKE_KEYS[:1]),
)

NETWORKS: Mapping[str, tuple[str, list[Inputs], list[tuple[Inputs, str]]]] = {
    "gather_nd": (
        GATHER_ND.format("y = GatherND(x, i)"),
        [points(0, 2), points(-1, -3), points()],
        [(points(at), INDEX) for at in (3, -4, 2**30, -(2**30))]
        + [({"x": floats(0), "i": indices(0).reshape(1, 1)}, INDEX)],
    ),
    "squeeze_then_unsqueeze": (
        "(float[A,B] x) => (float[C,D] y)"
        " { a = Constant<value = int64[1] {1}>() u = Squeeze(x, a) y = Unsqueeze(u, a) }",
        [{"x": floats(3, 1)}],
        [({"x": floats(1, 4)}, "axis to remove|incompatible")],
    ),
    "gather_nd_computed": (
        GATHER_ND.format("one = Constant<value = int64 {1}>() j = Add(i, one) y = GatherND(x, j)"),
        [points(-1, 0), points(1)],
        [(points(2), INDEX), (points(-5), INDEX)],
    ),
    "gather_nd_constant": (
        "(float[N] x) => (float y)"
        " { i = Constant<value = int64[1] {1000000000}>() y = GatherND(x, i) }",
        [],
        [({"x": floats(3)}, INDEX)],
    ),
    "crop_of_some_axes": (  # its sizes are scattered by an operation that cannot add
        "(float[1,N,M] x, int64[2] s) => (float[A,B,C] y)"
        " { y = CenterCropPad<axes = [-1, 1]>(x, s) }",
        [{"x": floats(1, 4, 5), "s": indices(2, 6)}, {"x": floats(1, 4, 5), "s": indices(7, 4)}],
        [],
    ),
    "gather_nd_of_rows": (
        "(float[N,P,Q] x, int64[N,1] i) => (float[K,Q] y) { y = GatherND<batch_dims = 1>(x, i) }",
        [{"x": floats(2, 3, 2), "i": indices(0, -3).reshape(2, 1)}],
        [({"x": floats(2, 3, 2), "i": indices(0, 3).reshape(2, 1)}, INDEX)]
        + [
            (
                {"x": floats(rows, 3, 2), "i": np.zeros((others, 1), np.int64)},
                f"{UNLIKE}|[Bb]roadcast",
            )
            for rows, others in ((1, 2), (2, 1), (3, 2), (1, 4000))
        ],
    ),
    "gather": (
        "(float[N,P] x, int64[M] i) => (float[M,P] y) { y = Gather(x, i) }",
        [rows(0, 2, -1, -3), rows()],
        [(rows(at), INDEX) for at in (3, -4, 2**29 + 1, 2**30, -(2**30), 2**31 - 1)]
        + [({"x": floats(0, 2), "i": indices(0)}, INDEX)],
    ),
    "gather_large_constant": (
        "(float[N] x) => (float y) { i = Constant<value = int64 {1073741824}>() y = Gather(x, i) }",
        [],
        [({"x": floats(3)}, INDEX)],
    ),
    "gather_of_integers": (
        "(int64[N] x, int64[M] i) => (int64[M] y) { y = Gather(x, i) }",
        [integers(np.int64, x=[5, 6, 7], i=[0, -3, 2])],
        [(integers(np.int64, x=[5, 6, 7], i=[0, at]), INDEX) for at in (3, -4, 2**30, -(2**30))],
    ),
    "rotary": (
        "(float[1,2,N,4] x, float[R,2] c, float[R,2] s, int64[1,N] p) => (float[A,B,C,D] y)"
        " { y = RotaryEmbedding(x, c, s, p) }",
        [positions(0, 2)],
        [(positions(0, 3), INDEX), (positions(7, 0), INDEX), (positions(0, -4), INDEX)],
    ),
    "gather_constant": (
        "(float[N,P] x) => (float[P] y) { i = Constant<value = int64 {1}>() y = Gather(x, i) }",
        [{"x": floats(2, 2)}, {"x": floats(2, 0)}],
        [({"x": floats(1, 2)}, INDEX), ({"x": floats(0, 2)}, INDEX)],
    ),
    "gather_elements": (
        "(float[N,2] x, int64[M,2] i) => (float[M,2] y) { y = GatherElements(x, i) }",
        [{"x": floats(3, 2), "i": indices(0, 2, -1, -3).reshape(2, 2)}],
        [
            ({"x": floats(3, 2), "i": indices(0, 3).reshape(1, 2)}, INDEX),
            ({"x": floats(3, 2), "i": indices(0, -4).reshape(1, 2)}, INDEX),
            ({"x": floats(0, 2), "i": indices(0, 0).reshape(1, 2)}, f"{INDEX}|{NOTHING}"),
        ],
    ),
    "nothing_added_to": (
        "(int64[2] s, float v) => (float[A,B] y)"
        " { c = ConstantOfShape<value = float[1] {2}>(s) y = Add(c, v) }",
        [{"s": indices(2, 3), "v": floats()}],
        [({"s": indices(*each), "v": floats()}, NOTHING) for each in ((6, 0), (0, 7), (0, 0))],
    ),
    "nothing_multiplied": (
        "(float v, int64[2] s, float[1,1] w) => (float[A,B] y) { e = Expand(v, s) y = Mul(e, w) }",
        [{"v": floats(), "s": indices(2, 3), "w": floats(1, 1)}],
        [({"v": floats(), "s": indices(6, 0), "w": floats(1, 1)}, NOTHING)],
    ),
    "gather_elements_of_a_slice": (
        "(float[N,6] x, int64[N,2] i) => (float[N,2] y) { s = Constant<value_ints = [0]>()"
        " e = Constant<value_ints = [4]>() a = Constant<value_ints = [1]>()"
        " t = Slice(x, s, e, a) y = GatherElements<axis = 1>(t, i) }",
        [{"x": floats(1, 6), "i": indices(3, -4).reshape(1, 2)}],
        [
            ({"x": floats(1, 6), "i": indices(0, 5).reshape(1, 2)}, INDEX),
            ({"x": floats(1, 6), "i": indices(-6, 0).reshape(1, 2)}, INDEX),
        ],
    ),
    "scatter_elements": (
        "(float[N] x, int64[M] i) => (float[N] y) { u = Cast<to = 1>(i)"
        " y = ScatterElements(x, i, u) }",
        [{"x": floats(3), "i": indices(0, -1)}, {"x": floats(3), "i": indices()}],
        [
            ({"x": floats(3), "i": indices(3)}, INDEX),
            ({"x": floats(3), "i": indices(-4)}, INDEX),
        ],
    ),
    "scatter_nd": (
        "(float[N] x, int64[M,1] i) => (float[N] y) { f = Cast<to = 1>(i)"
        " a = Constant<value = int64[1] {1}>() u = Squeeze(f, a) y = ScatterND(x, i, u) }",
        [points(0, -1), points()],
        [(points(3), "non-existing"), (points(-4), "non-existing")],
    ),
    "sequence": (
        "(float[2,1,2] x, float[1,6,2] w, float[1,6,2] r, int32[1] l) => (float[A,B,C,D] y,"
        " float[E,F,G] h) { y, h = GRU<hidden_size = 2>(x, w, r, , l) }",
        [sequence(2, 2)],  # the evaluator ignores lengths
        [(sequence(2, 3), INDEX), (sequence(2, -1), INDEX)],
    ),
    **{
        f"sequences_of_{sizes}": (
            f"(float[{sizes},2] x, float[1,6,2] w, float[1,6,2] r, int32[N] l) =>"
            " (float[A,B,C,D] y, float[E,F,G] h) { y, h = GRU<hidden_size = 2>(x, w, r, , l) }",
            [sequence(2, 2)],
            [(sequence(2, length), "not its number of steps") for length in (1, 0, 3, -1)],
        )
        for sizes in ("S,N", "S,1", "2,N")
    },
    **{
        f"batch_of_{op_type}": (
            f"(float[S,N,2] x, float[A,B,2] w, float[A,B,2] r) => (float[E,F,G] h)"
            f" {{ , h = {op_type}<hidden_size = 2>(x, w, r) }}",
            [batch(gates, 1), batch(gates, 3)],
            [(batch(gates, 0), "roadcast|incompatible|invalid|do not match")],
        )
        for op_type, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    },
    "average": (
        "(float[N,1,H,W] x) => (float[A,B,C,D] y)"
        " { y = AveragePool<kernel_shape = [3,3], pads = [2,2,2,2]>(x) }",
        [image(3, 3)],
        [(image(0, 3), NOTHING), (image(3, 0), NOTHING)],
    ),
    "average_behind_a_pad": (
        "(float[N,1,H,W] x) => (float[A,B,C,D] y)"
        " { p = Constant<value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}>() q = Pad(x, p)"
        " y = AveragePool<kernel_shape = [2,2]>(q) }",
        [image(3, 3)],
        [(image(0, 3), NOTHING), (image(0, 0), NOTHING)],
    ),
    "average_of_all": (
        "(float[N,1,H,W] x) => (float[A,B,C,D] y) { y = GlobalAveragePool(x) }",
        [image(3, 3)],
        [(image(0, 3), NOTHING)],
    ),
    "image_smaller_than_the_kernel": (
        "(float[N,1,H,W] x) => (float[A,B,C,D] y) { w = Constant<value = float[1,1,2,2]"
        " {1, 2, 3, 4}>() t = Conv(x, w) y = GlobalAveragePool(t) }",
        [image(2, 2)],
        [(image(1, 2), "smaller than its window"), (image(2, 1), "smaller than its window")],
    ),
    "image_smaller_than_the_padded_kernel": (
        "(float[N,1,H,W] x) => (float[A,B,C,D] y) { w = Constant<value = float[1,1,2,3]"
        " {1, 2, 3, 4, 5, 6}>() y = Conv<dilations = [3, 1], pads = [1, 1, 0, 1]>(x, w) }",
        [image(3, 1), image(4, 5)],
        [(image(2, 1), "smaller than its window"), (image(2, 3), "smaller than its window")],
    ),
    **{
        f"power_of_integers_by_{kind}": (
            f"(int64[N] x, {kind}[N] y) => (int64[N] z) {{ z = Pow(x, y) }}",
            [powers(kind, 3, 5), powers(kind, -2, 7), powers(kind, base, 1), powers(kind, 7, 0)],
            [(powers(kind, base, 2), EXACT), (powers(kind, base + 2, 1), EXACT)],
        )
        for kind, base in (("bfloat16", 255), ("float16", 2**24 - 1), ("float", 2**24 - 1))
    },
    "regions": (
        "(float[2,1,H,W] x, float[2,4] r, int64[2] b) => (float[A,B,C,D] y)"
        " { y = RoiAlign<output_height = 2, output_width = 2, sampling_ratio = 2>(x, r, b) }",
        [regions(0), regions(1)],
        [(regions(-1), INDEX), (regions(-5), "less, than -1"), (regions(2), "exist")],
    ),
    "regions_with_as_many_points_as_they_need": (
        "(float[1,1,H,W] x, float[N,4] r, int64[N] b) => (float[A,B,C,D] y)"
        " { y = RoiAlign(x, r, b) }",
        [
            {
                "x": floats(1, 1, 6, 6) ** 3,
                "r": np.array(
                    [[0, 0, 5, 5], [1, 2, 1, 4], [4, 4, 1, 1], [0, 0, 20, 9]], np.float32
                ),
                "b": indices(0, 0, 0, 0),
            }
        ],
        [],
    ),
    "points_of_an_image": (
        "(float[1,1,H,W] x) => (float[A,B,C,D] y) { g = Constant<value = float[1,1,1,2]"
        " {0, 0}>() y = GridSample<align_corners = 1>(x, g) }",
        [image(3, 3)],
        [(image(0, 3), NOTHING)],
    ),
    "size": (
        "(float[1,1,H,W] x) => (float[A,B,C,D] y)"
        " { s = Constant<value = int64[4] {1, 1, 4, 4}>() y = Resize(x, , , s) }",
        [image(2, 2)],
        [(image(0, 3), NOTHING)],
    ),
    "nothing_found": (
        "(float[N] x) => (float y) { i = NonZero(x)"
        " z = Constant<value = int64[2] {0, -1}>() g = Gather(x, i)"
        " a = Constant<value = int64[2] {0, 1}>() y = ReduceMean<keepdims = 0>(g, a) }",
        [{"x": floats(4)}],
        [({"x": np.zeros(4, np.float32)}, NOTHING)],
    ),
    "quotient": (
        "(int32[N] x, int32[N] d) => (int32[N] y) { y = Div(x, d) }",
        [{"x": np.array([7, -7], np.int32), "d": np.array([2, 2], np.int32)}],
        [({"x": np.array([7, 7], np.int32), "d": np.array([2, 0], np.int32)}, ZERO)],
    ),
    "remainder": (
        "(int32[N] x, int32[N] d) => (int32[N] y) { y = Mod(x, d) }",
        [{"x": np.array([7, -7], np.int32), "d": np.array([2, 2], np.int32)}],
        [({"x": np.array([7, 7], np.int32), "d": np.array([2, 0], np.int32)}, ZERO)],
    ),
    "split": (
        "(float[N] x, int64[2] s) => (float[A] y, float[B] z) { y, z = Split(x, s) }",
        [
            {"x": floats(3), "s": indices(1, 2)},
            {"x": floats(3), "s": indices(0, 3)},
            {"x": floats(0), "s": indices(0, 0)},
        ],
        [
            ({"x": floats(0), "s": indices(1, -1)}, f"{NEGATIVE}|Total length"),
            ({"x": floats(0), "s": indices(1, 0)}, "Total length|whose sum"),
            ({"x": floats(3), "s": indices(-1, 4)}, f"{NEGATIVE}|Total length"),
            ({"x": floats(3), "s": indices(-1, 3)}, NEGATIVE),
        ],
    ),
    "split_of_nothing": (
        "(float[N,M] x, int64[2] s) => (float[A,B] y, float[C,D] z)"
        " { y, z = Split<axis = 1>(x, s) }",
        [{"x": floats(2, 3), "s": indices(1, 2)}, {"x": floats(2, 0), "s": indices(0, 0)}],
        [({"x": floats(0, 3), "s": indices(1, 2)}, FORGOTTEN)],
    ),
    "resize_of_nothing": (
        "(float[N,1,H,W] x, int64[2] s) => (float[A,B,C,D] y)"
        " { y = Resize<axes = [2,3]>(x, , , s) }",
        [{**image(2, 2), "s": indices(2, 4)}],
        [({"x": floats(0, 1, 2, 2), "s": indices(2, 4)}, FORGOTTEN)],
    ),
    **{
        f"cubic_image_of_{len(shape)}_axes": (
            f"(float[{axes}] x, int64[{len(shape)}] s) => (float[{made}] y)"
            ' { y = Resize<mode = "cubic">(x, , , s) }',
            [{"x": floats(*shape), "s": indices(*shape[:-2], 5, 6)}],
            [
                ({"x": floats(*shape), "s": indices(*shape[:-3], more, 4, 5)}, CUBIC)
                for more in (1, 4)
            ],
        )
        for shape, axes, made in (
            ((2, 3, 4), "N,H,W", "A,B,C"),
            ((1, 2, 3, 4), "N,M,H,W", "A,B,C,D"),
        )
    },
    "cubic_factors": (
        '(float[N,H,W] x, float[3] s) => (float[A,B,C] y) { y = Resize<mode = "cubic">(x, , s) }',
        [{"x": floats(2, 3, 4), "s": np.array([1, 2, 2], np.float32)}],
        [({"x": floats(2, 3, 4), "s": np.array([2, 1, 1], np.float32)}, CUBIC)],
    ),
    "top_of_nothing": (
        "(float[N,M] x, int64[1] k) => (float[A,B] y, int64[C,D] i) { y, i = TopK(x, k) }",
        [{"x": floats(2, 3), "k": indices(1)}],
        [({"x": floats(0, 3), "k": indices(1)}, FORGOTTEN)],
    ),
    "expansion_of_a_constant_to_the_shape_of_an_input": (
        "(float[N,M] x) => (float[A,B] y) { c = Constant<value = float[2,2] {1, 2, 3, 4}>()"
        " s = Shape(x) y = Expand(c, s) }",
        [{"x": floats(2, 2)}, {"x": floats(1, 2)}, {"x": floats(1, 1)}],
        [({"x": floats(*shape)}, "do not fit") for shape in ((1, 4), (4, 4), (3, 1))],
    ),
    "pads": (
        "(float[N] x, int64[2] p) => (float[A] y) { y = Pad(x, p) }",
        [{"x": floats(3), "p": indices(2, 1)}],
        [
            ({"x": floats(3), "p": indices(*pads)}, "cut off too many")
            for pads in ((-4, 2), (5, -4), (2, -4), (-7, 9), (-2, -2))
        ]
        + [
            ({"x": floats(3), "p": indices(*pads)}, "too many pads")
            for pads in ((2**31 - 1, 2**31 - 1), (0, 2**30), (2**31 - 1, -1))
        ],
    ),
    **{
        f"pads_of_a_matrix_by_{mode}": (
            f'(float[N,M] x, int64[P] p) => (float[A,B] y) {{ y = Pad<mode = "{mode}">(x, p) }}',
            [{"x": floats(2, 3), "p": indices(1, 0, 0, 1)}],
            [
                (
                    {"x": floats(2, 3), "p": indices(*[value] * count)},
                    f"{COUNT}|mismatch|inconsistent",
                )
                for value in (0, 1)
                for count in (2, 6)
            ],
        )
        for mode in ("constant", "edge")
    },
    "edges_of_what_is_left": (
        '(float[N] x, int64[2] p) => (float[A] y) { y = Pad<mode = "edge">(x, p) }',
        [{"x": floats(3), "p": indices(2, 1)}],
        [
            ({"x": floats(3), "p": indices(*pads)}, "cut off too many")
            for pads in ((-4, 5), (5, -4), (3, -3), (-7, 9))
        ],
    ),
    "scatter_elements_rows": (
        "(float[N,3] x, int64[A,B] i, float[C,D] u) => (float[N,3] y)"
        " { y = ScatterElements<axis = 1>(x, i, u) }",
        [{"x": floats(3, 3), "i": indices(0, 2, 1, 0).reshape(2, 2), "u": floats(2, 2)}],
        [
            ({"x": floats(1, 3), "i": np.zeros((rows, 2), np.int64), "u": floats(rows, 2)}, UNLIKE)
            for rows in (2, 4000)
        ],
    ),
    **{
        f"attention_without_a_kernel_{name}": (
            "(float[B,H,Q,D] q, float[C,J,K,E] k, float[F,L,M,G] v, float[N,O] m)"
            f" => (float[S,T,U,W] y) {{ y = Attention<{attributes}>(q, k, v, m) }}",
            [masked((2, 3, 4, 8), (2, heads, 6, 8), (2, heads, 6, 8), (4, 6)) for heads in (1, 3)],
            [
                (masked((2, 3, 4, 8), keys, values, (4, 6)), UNLIKE)
                for keys, values in (
                    ((2, 1, 6, 8), (2, 3, 6, 8)),
                    ((2, 3, 6, 8), (2, 1, 6, 8)),
                    ((1, 3, 6, 8), (2, 3, 6, 8)),
                    ((2, 3, 6, 8), (1, 3, 6, 8)),
                )
            ]
            + [(masked((2, 1, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8), (4, 6)), UNLIKE)]
            + [(masked((2, 3, 1, 8), (2, 3, 6, 8), (2, 3, 6, 8), (4, 6)), UNLIKE)]
            + [(masked((2, 3, 4, 8), (2, 3, 0, 8), (2, 3, 0, 8), (4, 0)), NOTHING)]
            + [(masked((2, 3, 4, 0), (2, 3, 6, 0), (2, 3, 6, 8), (4, 6)), NOTHING)],
        )
        for name, attributes in (
            ("capped", "softcap = 1.0"),
            ("capped_causal", "softcap = 1.0, is_causal = 1"),
        )
    },
    **{
        f"rotary_halves_{kind}": (
            f"({x} x, float[50,{half}] c, float[50,{half}] s, int64[2,3] p) => ({y} y)"
            f" {{ y = RotaryEmbedding<{attributes}>(x, c, s, p) }}",
            [rotated_at(shape(2 * half), half)],
            [(rotated_at(shape(length), half), NO_FIT) for length in (2, 8, 6, 32)]
            + [(rotated_at((2000, *shape(2 * half)[1:]), half), NO_FIT)],
        )
        for kind, x, y, attributes, half, shape in (
            ("of_lists", *_OF_LISTS, "num_heads = 4", 33, lambda last: (2, 3, 4 * last)),
            ("of_short_lists", *_OF_LISTS, "num_heads = 4", 2, lambda last: (2, 3, 4 * last)),
            ("of_heads", *_OF_HEADS, "interleaved = 0", 33, lambda last: (2, 4, 3, last)),
            ("beside_each_other", *_OF_HEADS, "interleaved = 1", 33, lambda last: (2, 4, 3, last)),
        )
    },
    **{
        f"rotary_part_{interleaved}": (
            "(float[B,2,N,D] x, float[50,2] c, float[50,2] s, int64[2,3] p) => (float[A,E,F,G] y)"
            f" {{ y = RotaryEmbedding<rotary_embedding_dim = 4, interleaved = {interleaved}>"
            "(x, c, s, p) }",
            [rotated_at((2, 2, 3, length), 2) for length in (4, 5, 8)],
            [(rotated_at((2, 2, 3, length), 2), NO_FIT) for length in (3, 1)],
        )
        for interleaved in (0, 1)
    },
    "rotary_rows": (
        "(float[B,2,N,4] x, float[C,M,2] c, float[D,P,2] s) => (float[E,F,G,J] y)"
        " { y = RotaryEmbedding(x, c, s) }",
        [rotated((2, 3, 2), (2, 3, 2))],
        [(rotated(shape, (2, 3, 2)), NO_FIT) for shape in ((1, 3, 2), (2, 1, 2), (1, 1, 2))]
        + [(rotated((2, 3, 2), (2, 1, 2)), NO_FIT)],
    ),
    "slopes": (
        "(float[N,M] x, float[A,B] s) => (float[C,D] y) { y = PRelu(x, s) }",
        [{"x": -floats(2, 3), "s": floats(1, 3)}, {"x": -floats(2, 3), "s": floats(2, 1)}],
        [({"x": -floats(2, 1), "s": floats(2, 3)}, UNLIKE)],
    ),
    "recurrent_weights": (
        "(float[S,N,2] x, float[A,B,C] w, float[D,E,F] r) => (float[G,H,I,J] y)"
        " { y = GRU<hidden_size = 2>(x, w, r) }",
        [{"x": floats(2, 1, 2) / 9, "w": floats(1, 6, 2) / 50, "r": floats(1, 6, 2) / 50}],
        [
            ({"x": floats(2, 1, 2), "w": floats(*w), "r": floats(*r)}, "these values")
            for w, r in (
                ((1, 3, 2), (1, 6, 2)),
                ((1, 6, 2), (1, 2, 2)),
                ((1, 6, 2), (1, 6, 5)),
                ((2, 6, 2), (1, 6, 2)),
                ((1, 6, 3), (1, 6, 2)),
            )
        ],
    ),
    "tile": (
        "(float[N,M] x, int64[2] s) => (float[A,B] y) { y = Tile(x, s) }",
        [{"x": floats(2, 3), "s": indices(2, 0)}],
        [
            ({"x": floats(2, 3), "s": indices(-1, 1)}, f"{NEGATIVE}|lower than zero"),
            ({"x": floats(0, 3), "s": indices(1, 2)}, FORGOTTEN),
        ],
    ),
    "tile_of_a_constant": (
        "(int64[1] s) => (float[A] y) <float[1] x = {3}> { y = Tile(x, s) }",
        [{"s": indices(2)}],
        [({"s": indices(at)}, f"{NEGATIVE}|lower than zero") for at in (-1, -2, -(2**31))],
    ),
    "filled": (
        "(int64[2] s) => (float[A,B] y) { y = ConstantOfShape(s) }",
        [{"s": indices(2, 3)}],
        [({"s": indices(2, at)}, ".") for at in (-1, -2, -(2**31))],
    ),
    "expanded_constant": (
        "(int64[2] s) => (float[A,B] y) <float[1,1] x = {3}> { y = Expand(x, s) }",
        [{"s": indices(2, 3)}],
        [({"s": indices(2, at)}, ".") for at in (-1, -2, -(2**31))],
    ),
    "factors": (
        "(float[1,1,H,W] x, float[S] s) => (float[A,B,C,D] y) { y = Resize(x, , s) }",
        [{**image(2, 2), "s": np.array([1, 1, 2, 2], np.float32)}],
        [({**image(2, 2), "s": np.ones(count, np.float32)}, COUNT) for count in (5, 8)],
    ),
    "factors_of_axes": (
        "(float[1,1,H,W] x, float[S] s) => (float[A,B,C,D] y) { y = Resize<axes = [2,3]>(x, , s) }",
        [{**image(2, 2), "s": np.array([2, 1], np.float32)}],
        [({**image(2, 2), "s": np.ones(3, np.float32)}, COUNT)],
    ),
    "largest": (
        "(float[N] x, int64[1] k) => (float[K] y, int64[K] i) { y, i = TopK(x, k) }",
        [{"x": floats(3), "k": indices(3)}, {"x": floats(3), "k": indices(0)}],
        [({"x": floats(3), "k": indices(4)}, "larger than the number of elements")],
    ),
    "largest_of_few": (
        "(float[N] x) => (float[K] y, int64[K] i)"
        " { k = Constant<value = int64[1] {3}>() y, i = TopK(x, k) }",
        [{"x": floats(3)}, {"x": floats(4)}],
        [({"x": floats(2)}, "larger than the number of elements")],
    ),
    "blocks": (
        "(float[1,4,N] x, int64[2] s) => (float[A,B,C,D] y)"
        " { b = Constant<value = int64[2] {2, 2}>() y = Col2Im(x, s, b) }",
        [{"x": floats(1, 4, 4), "s": indices(3, 3)}],
        [({"x": floats(1, 4, count), "s": indices(3, 3)}, "blocks") for count in (3, 5)],
    ),
    "edges": (
        '(float[N,M] x, int64[4] p) => (float[A,B] y) { y = Pad<mode = "edge">(x, p) }',
        [
            {"x": floats(2, 3), "p": indices(0, 0, 1, 2)},
            {"x": floats(2, 3), "p": indices(0, 0, 0, 0)},
        ],
        [({"x": floats(2, 3), "p": indices(0, -3, 0, 4)}, "cut off too many")],
    ),
    "product_with_nothing": (
        "(float[N,K] x, float[A,4] w) => (float[N,4] y) { y = MatMul(x, w) }",
        [
            {"x": floats(2, 3) / 9, "w": floats(3, 4) / 9},
            {"x": floats(2, 0), "w": floats(0, 4)},
        ],
        [({"x": floats(2, 0), "w": floats(3, 4)}, "Incompatible")],
    ),
    "product_with_constant_weights": (
        "(float[N,K] a) => (float[A,B] y) <float[2,1] b = {1, 2}, float[1,1] c = {3}>"
        " { y = Gemm(a, b, c) }",
        [{"a": floats(3, 2)}],
        [({"a": floats(*shape)}, "'y") for shape in ((3, 1), (3, 3), (4, 1), (1, 4))],
    ),
    "product_of_images_with_constant_weights": (
        "(float[A,B,N,K] a) => (float[A,B,N,M] y) <float[2,1] b = {1, 2}> { y = MatMul(a, b) }",
        [{"a": floats(1, 2, 3, 2)}, {"a": floats(2, 1, 0, 2)}, {"a": floats(2, 3, 1, 2)}],
        [({"a": floats(1, *each)}, "'y") for each in ((2, 4, 1), (1, 1, 4), (2, 1, 3))],
    ),
    "unique_elements": (
        "(float[7] x) => (float[N] y, int64[N] i) { y, i = Unique(x) }",
        [{"x": np.array([3, 1, 2, 1, -0.0, np.inf, 5], np.float32)}],
        [({"x": np.array([0, 2, np.nan, 4, 1, 5, 0], np.float32)}, "NaN")],
    ),
    "product_of_matrices": (
        "(float[N,K] a, float[L,M] b) => (float[N,M] y) { y = MatMul(a, b) }",
        [{"a": floats(3, 2), "b": floats(2, 4)}],
        [({"a": floats(3, 2), "b": floats(size, 4)}, "layer|fit|shape") for size in (1, 3)],
    ),
    "product_of_integers": (
        "(int32[N,2] x, int32[2,M] w) => (int32[N,M] y) { y = MatMul(x, w) }",
        [integers(np.int32, x=[[4000, 1]], w=[[4000], [1]])],
        [
            (integers(np.int32, x=[[5001, 1]], w=[[5001], [0]]), EXACT),
            (integers(np.int32, x=[[2**30, 2**30]], w=[[1], [-1]]), EXACT),
        ],
    ),
    "sum_of_integers": (
        "(int64[N] x) => (int64[1] y) { y = ReduceSum(x) }",
        [integers(np.int64, x=[2**24 - 4, 3])],
        [(integers(np.int64, x=[2**24, 1]), EXACT), (integers(np.int64, x=[2**30]), EXACT)],
    ),
    "power_of_integers": (
        "(int32[N] x, int32[N] n) => (int32[N] y) { y = Pow(x, n) }",
        [integers(np.int32, x=[4095, -3], n=[2, 3])],
        [(integers(np.int32, x=[4097, 1], n=[2, 1]), EXACT)],
    ),
    "integers_of_64_bits": (
        "(int64[N] x, int64[N] d) => (int64[N] y, int64[N] z, int64[N] w)"
        " { y = Add(x, d) z = Sub(x, d) w = Mul(x, d) }",
        [integers(np.int64, x=[2**30, -(2**30)], d=[-1, 1])],
        [
            (integers(np.int64, x=[2**30, 0], d=[2**30, 0]), EXACT),
            (integers(np.int64, x=[2**16, 0], d=[2**15, 0]), EXACT),
            (integers(np.int64, x=[2**31 - 1, 0], d=[-(2**31), 0]), EXACT),
        ],
    ),
    "negative_factors_and_terms_of_64_bits": (
        "(int64[2] x) => (int64[2] y, int64[2] z) { c = Constant<value = int64[2] {-5, -65536}>()"
        " y = Mul(x, c) z = Sub(x, c) }",
        [integers(np.int64, x=[2**28, -5])],
        [
            (integers(np.int64, x=[0, 2**16]), EXACT),
            (integers(np.int64, x=[-(2**29), 0]), EXACT),
            (integers(np.int64, x=[0, 2**31 - 1]), EXACT),
        ],
    ),
    "opposites_of_64_bits": (
        "(int64[N] x) => (int64[N] y, int64[N] z) { y = Neg(x) z = Abs(x) }",
        [integers(np.int64, x=[2**30, -(2**30)])],
        [(integers(np.int64, x=[-(2**31), 0]), EXACT)],
    ),
    **{
        f"factors_of_{name}": (
            f"({name}[N,2] x) => ({name}[1,2] y)"
            " { a = Constant<value = int64[1] {0}>() y = ReduceProd(x, a) }",
            [integers(dtype, x=[[2**24 + 1, 2], [3, 0]]), integers(dtype, x=np.ones((0, 2)))],
            [(integers(dtype, x=[[2**16 + 1, 1], [2**16 + 1, 1]]), EXACT)],
        )
        for name, dtype in (("int64", np.int64), ("uint64", np.uint64))
    },
    "running_sum_of_64_bits": (
        "(int64[N] x) => (int64[N] y) { a = Constant<value = int64 {0}>()"
        " y = CumSum<reverse = 1, exclusive = 1>(x, a) }",
        [integers(np.int64, x=[-1, 2**24 + 1, 3])],
        [(integers(np.int64, x=[1, 1, 2**31 - 1]), EXACT)],
    ),
    "product_of_einstein": (
        "(int64[N,2] x, int64[2,M] w) => (int64[N,M] y)"
        ' { y = Einsum<equation = "ij,jk->ik">(x, w) }',
        [integers(np.int64, x=[[4000, 1]], w=[[4000], [1]])],
        [(integers(np.int64, x=[[5001, 1]], w=[[5001], [0]]), EXACT)],
    ),
    "quotient_of_large_integers": (
        "(int32[N] x, int32[N] d) => (int32[N] y, int32[N] z) { y = Div(x, d) z = Mod(x, d) }",
        [integers(np.int32, x=[2**24 - 1, -(2**24) + 1], d=[7, 4])],
        [
            (integers(np.int32, x=[2**24 + 3, 1], d=[1, 1]), EXACT),
            (integers(np.int32, x=[1, 1], d=[1, 2**24 + 3]), EXACT),
        ],
    ),
    "remainder_of_another_sign": (
        "(int32[N] x, int32[N] d) => (int32[N] y) { y = Mod(x, d) }",
        [
            integers(
                np.int32, x=[-(2**24) + 50000, 2**24 - 1, -(2**23)], d=[46341, -(2**24) + 1, 2**22]
            )
        ],
        [(integers(np.int32, x=[-(2**24) + 1, 1], d=[46341, 1]), EXACT)],
    ),
    **{
        f"{name}_of_64_bits": (
            "(int64[N] x, int64[M,1] i, int64[M,1] w) => (int64[N] y, int64[N] z)"
            f" {{ a = Constant<value = int64[1] {{1}}>() j = Squeeze(i, a) v = Squeeze(w, a)"
            f' y = ScatterElements<reduction = "{reduction}">(x, j, v)'
            f' z = ScatterND<reduction = "{reduction}">(x, i, v) }}',
            [integers(np.int64, x=[3, -(2**26), 7], i=[[1], [2], [1]], w=[[2], [-5], [3]])],
            [(integers(np.int64, x=[3, 2**30, 7], i=[[1], [1]], w=[[2**30], [4]]), EXACT)],
        )
        for name, reduction in (("scattered_terms", "add"), ("scattered_factors", "mul"))
    },
    "bias_of_integers": (
        "(int32[2,3] x, int32[3,2] w) => (int32[2,2] y)"
        " { b = Constant<value = int32[2] {8, 16777215}>() y = Gemm(x, w, b) }",
        [integers(np.int32, x=[[1, 2, 3], [4, 5, 6]], w=[[0, 0], [0, 0], [0, 0]])],
        [(integers(np.int32, x=[[-4, 7, 1], [-7, -1, -4]], w=[[-4, -8], [7, 7], [6, 5]]), EXACT)],
    ),
    "term_of_a_sum": (
        "(int32[2,3] x) => (int32[2,1] y) { a = Constant<value = int64[1] {1}>()"
        " b = Constant<value = int32 {16777200}>() s = ReduceSum(x, a) y = Add(s, b) }",
        [integers(np.int32, x=[[1, 2, 3], [4, 5, 6]])],
        [(integers(np.int32, x=[[1, 2, 4], [4, 5, 8]]), EXACT)],
    ),
    "slopes_of_integers": (
        "(int32[N,2] x, int32[2] s) => (int32[N,2] y) { y = PRelu(x, s) }",
        [integers(np.int32, x=[[-4000, 2**24 - 1], [1, 2]], s=[4000, 1])],
        [(integers(np.int32, x=[[-4097, 0], [1, 2]], s=[4097, 1]), EXACT)],
    ),
    "reversed_integers": (
        "(int64[3,2] x, int64[2] l) => (int64[3,2] y) { y = ReverseSequence(x, l) }",
        [integers(np.int64, x=[[2**24 - 1, 2], [3, 4], [5, -(2**24) + 1]], l=[2, 3])],
        [(integers(np.int64, x=[[2**24 + 1, 2], [3, 4], [5, 6]], l=[2, 3]), EXACT)],
    ),
    "integer_like_another": (
        "(int64[N] x, uint64[N] z) => (int64[N] y, uint64[N] w)"
        " { f = Cast<to = 1>(x) y = CastLike(f, x) w = CastLike(f, z) }",
        [
            {"x": np.array([2**24 + 2, 5]), "z": np.zeros(2, np.uint64)},
        ],
        [({"x": np.array([2**31 - 1, 5]), "z": np.zeros(2, np.uint64)}, EXACT)],
    ),
    **{
        f"{operator}_without_a_sign_{name}": (
            f"({name}[N] x, {name}[N] w) => ({name}[N] y, float[N] z)"
            f" {{ y = {operator}(x, w) a = {operator}(w, x) z = Cast<to = 1>(a) }}",
            [integers(dtype, x=[5, 2**10, 2**12], w=[5, 2**10 + 1, 2**13])],
            [(integers(dtype, x=[1, values[0]], w=[1, values[1]]), EXACT)],
        )
        for name, dtype in (("uint32", np.uint32), ("uint64", np.uint64))
        for operator, values in (
            ("Add", (2**30, 2**30)),
            ("Sub", (2**24 + 1, 2**24)),
            ("Mul", (2**16, 2**15)),
        )
    },
    "bits_without_a_sign": (
        "(uint32[N] x, uint32[N] w) => (uint32[N] y, uint32[N] z)"
        " { y = BitwiseNot(x) m = Constant<value = uint32 {255}>() n = BitwiseAnd(x, m)"
        " a = BitwiseXor(n, w) z = Max(a, m) }",
        [integers(np.uint32, x=[5, 2**31 - 1], w=[2**30, 7])],
        [],
    ),
    "truth_of_an_integer": (
        "(int32[N] x) => (bool[N] y) { y = Cast<to = 9>(x) }",
        [integers(np.int32, x=[0, -1, 2**31 - 1, -(2**30)])],
        [(integers(np.int32, x=[0, -(2**31)]), EXACT)],
    ),
    "negative_integer_without_a_sign": (
        "(int64[N] x) => (uint32[N] y, int64[N] z)"
        " { y = Cast<to = 12>(x) a = Cast<to = 12>(x) b = Identity(a) z = Cast<to = 7>(b) }",
        [integers(np.int64, x=[0, 2**31 - 1])],
        [(integers(np.int64, x=[5, -1]), EXACT)],
    ),
    "largest_of_windows": (
        "(int32[1,1,N] x) => (int32[1,1,M] y) { y = MaxPool<kernel_shape = [2]>(x) }",
        [integers(np.int32, x=[[[2**24 - 1, 3, -5]]])],
        [(integers(np.int32, x=[[[2**24 + 1, 3, -5]]]), EXACT)],
    ),
    "comparison_of_integers": (
        "(int64[N] x, int64[N] d) => (bool[N] y, bool[N] z) { y = Equal(x, d) z = Less(x, d) }",
        [integers(np.int64, x=[2**24 - 1, -5], d=[2**24 - 2, -5])],
        [
            (integers(np.int64, x=[2**24 + 1, 0], d=[2**24, 0]), EXACT),
            (integers(np.int64, x=[0, 2**24], d=[0, 2**24 + 1]), EXACT),
        ],
    ),
    "comparison_with_a_large_constant": (
        "(int32[N] x) => (bool[N] y)"
        " { c = Constant<value = int32 {2147483647}>() y = Equal(x, c) }",
        [integers(np.int32, x=[2**24 - 1, -5])],
        [(integers(np.int32, x=[2**31 - 1, 0]), EXACT)],
    ),
    "sum_in_a_kernel_of_floats": (
        "(int32[N] x, int32[N] d) => (int32[N] y) { s = Sub(x, d) y = Relu(s) }",
        [integers(np.int32, x=[2**23, -5], d=[-(2**23) + 1, 1])],
        [(integers(np.int32, x=[2**24 + 1, 0], d=[2**24, 0]), EXACT)],
    ),
    "choice_of_integers": (
        "(int32[N] x, float[N] f) => (int32[N] y)"
        " { z = Constant<value = float {0}>() c = Greater(f, z) m = Neg(x) y = Where(c, x, m) }",
        [{**integers(np.int32, x=[2**24 - 1, 7]), "f": floats(2) - 1}],
        [({**integers(np.int32, x=[2**24 + 1, 7]), "f": floats(2) - 1}, EXACT)],
    ),
    "extremes_of_integers": (
        "(int64[N] x) => (int64[1] y, int64[1] z, int64[1] w)"
        " { y = ReduceMax(x) z = ReduceMin(x) w = ReduceL1(x) }",
        [integers(np.int64, x=[2**23 + 1, -(2**23) + 2])],
        [(integers(np.int64, x=[2**24 + 1, 0]), EXACT)],
    ),
    "integer_from_a_float": (
        "(float[N] x) => (int64[N] y) { y = Cast<to = 7>(x) }",
        [{"x": np.array([2.0**30, -3.7], np.float32)}],
        [({"x": np.array([value], np.float32)}, EXACT) for value in (3e9, -3e9, 1e18)],
    ),
    "range_of_int32": (
        "(int32 a, int32 b, int32 c) => (int32[N] y) { y = Range(a, b, c) }",
        [integers(np.int32, a=0, b=5, c=2), integers(np.int32, a=3, b=0, c=-1)],
        [(integers(np.int32, a=0, b=0, c=0), "step of 0")],
    ),
    "counter": (
        "(int64 a, int64 b, int64 c) => (int64[N] y) { y = Range(a, b, c) }",
        [integers(np.int64, a=1, b=7, c=2), integers(np.int64, a=7, b=1, c=-2)],
        [(integers(np.int64, a=1, b=7, c=0), "step of 0")],
    ),
    "bias": (
        "(float[N,2] x, float[2,M] w, float[A,B] b) => (float[N,M] y)"
        " { y = Gemm<alpha = 0.5, beta = 2.0>(x, w, b) }",
        [
            {"x": floats(3, 2), "w": floats(2, 4), "b": floats(*shape)}
            for shape in ((3, 4), (1, 4), (3, 1), (1, 1))
        ],
        [
            ({"x": floats(1, 2), "w": floats(2, 1), "b": floats(*shape)}, "conflicts|incompatible")
            for shape in ((1, 2), (2, 1))
        ],
    ),
    "attention": (
        "(float[A,H,L,E] q, float[B,I,S,F] k, float[C,J,T,G] v) => (float[D,K,M,N] y)"
        " { y = Attention<is_causal = 1>(q, k, v) }",
        [heads((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7))],
        [
            (heads(*shapes), NO_FIT)
            for shapes in (
                ((1, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7)),
                ((2, 3, 4, 5), (1, 3, 6, 5), (1, 3, 6, 7)),
                ((2, 3, 4, 5), (2, 3, 6, 1), (2, 3, 6, 7)),
                ((2, 3, 4, 1), (2, 3, 6, 5), (2, 3, 6, 7)),
                ((2, 3, 4, 5), (2, 3, 6, 5), (2, 1, 6, 7)),
                ((1, 1, 1, 500_000), (1, 1, 8, 1), (1, 1, 8, 7)),
                ((1, 1, 1, 8), (1, 1, 500_000, 8), (1, 1, 1, 7)),
            )
        ],
    ),
    **{
        f"attention_with_a_mask{name}": (
            f"{NEW}({q} q, {k} k, {k} v, {kind}[N,O] m) => (float[S,T,U,W] y)"
            f" {{ y = Attention<{attributes}>(q, k, v, m) }}",
            [
                masked((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8), (rows, columns), kind=kind)
                for rows in ((4,) if "causal" in attributes else (1, 4))
                for columns in (4, 6)
            ],
            [
                (
                    masked((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8), (4, columns), kind=kind),
                    "is wider",
                )
                for columns in (7, 16)
            ],
        )
        for name, q, k, kind, attributes in _MASKED
    },
    **{
        f"attention_of_products_{name}": (
            f"({q} q, {k} k, {v} v) => (float[S,T,U,W] y)"
            " { t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t) p = Softmax(s)"
            " y = MatMul(p, v) }",
            [heads((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7))],
            [(heads(*shapes), f"{NO_FIT}|Incompatible") for shapes in wrong],
        )
        for name, q, k, v, wrong in _OF_PRODUCTS
    },
    "expansion": (
        "(float[1,2] x, int64[1] s) => (float[A,B] y) { y = Expand(x, s) }",
        [{"x": floats(1, 2), "s": indices(size)} for size in (1, 2)],
        [({"x": floats(1, 2), "s": indices(size)}, f"{UNLIKE}|target|mismatch") for size in (0, 3)],
    ),
    "scale": (
        "(float[4] x, float s) => (uint8[4] y) { z = Constant<value = uint8 {3}>()"
        " y = QuantizeLinear(x, s, z) }",
        [{"x": floats(4), "s": np.array(0.5, np.float32)}],
        [({"x": floats(4), "s": np.array(-0.5, np.float32)}, "negative scale")],
    ),
    "joined_with_nothing": (
        "(float[0,3] x, float[N,M] z) => (float[A,B] y) { y = Concat<axis = 0>(x, z) }",
        [{"x": floats(0, 3), "z": floats(2, 3)}],
        [({"x": floats(0, 3), "z": floats(2, 4)}, f"{UNLIKE}|inconsistent")],
    ),
    "joined_beside_nothing": (
        "(float[N,M,K] x, float[0,4,1] c) => (float[A,B,C] y, float[D,E,F] z)"
        " { y = Concat<axis = 2>(c, x, c) z = Neg(y) }",
        [{"x": floats(0, 4, size), "c": floats(0, 4, 1)} for size in (8, 0, 3)],
        [
            ({"x": floats(*shape), "c": floats(0, 4, 1)}, f"{UNLIKE}|inconsistent")
            for shape in ((2, 4, 8), (0, 5, 8))
        ],
    ),
    "axis_to_drop": (
        "(float[2,1,3] x, int64[1] a) => (float[A,B] y) { y = Squeeze(x, a) }",
        [{"x": floats(2, 1, 3), "a": indices(axis)} for axis in (1, -2)],
        [
            ({"x": floats(2, 1, 3), "a": indices(axis)}, "(?i)axis|incompatible")
            for axis in (0, 2, 7)
        ],
    ),
    "batch_normalization": (
        "(float[N,C,H] x, float[S] s) => (float[A,B,D] y)"
        " { y = BatchNormalization(x, s, s, s, s) }",
        [{"x": floats(2, count, 4), "s": floats(count)} for count in (3, 1)],
        [({"x": floats(2, count, 4), "s": floats(3)}, f"{UNLIKE}|match") for count in (1, 17)],
    ),
    "scatter_of_one_index": (
        "(float[A,B] x, int64[K] i, float[N] u) => (float[C,D] y) { y = ScatterND(x, i, u) }",
        [{"x": floats(3, 2), "i": indices(1), "u": floats(2)}],
        [
            ({"x": floats(3, 2), "i": indices(*index), "u": floats(count)}, "(?i)shape")
            for index, count in (((2, 1), 2), ((2, 1), 1), ((1,), 0), ((1,), 5), ((), 2))
        ],
    ),
    "loss": (
        "(float[N,C] x, int64[M] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }",
        [{"x": floats(3, 4), "t": indices(0, 3, 2)}],
        [
            ({"x": floats(rows, 4), "t": indices(*target)}, "not consistent")
            for rows, target in ((3, (0, 3)), (5, (0, 3, 2)), (3, (1,)))
        ],
    ),
    "groups": (
        "(float[1,4,2] x, float[4] s, float[N] b) => (float[A,B,C] y)"
        " { y = GroupNormalization<num_groups = 2>(x, s, b) }",
        [{"x": floats(1, 4, 2), "s": floats(4), "b": floats(4)}],
        [
            (
                {"x": floats(1, 4, 2), "s": floats(4), "b": floats(count)},
                f"{UNLIKE}|channel|mismatch",
            )
            for count in (1, 2, 0)
        ],
    ),
    "slice_from": (
        "(float[N,4] x, int64[1] a, int64[1] s) => (float[A,B] y) <int64[1] e = {3}>"
        " { y = Slice(x, s, e, a) }",
        [
            {"x": floats(rows, 4), "a": indices(axis), "s": indices(start)}
            for axis, start, rows in product((0, 1), (0, 2), (0, 5))
        ],
        [],
    ),
    "number": (
        "(float[N,M] x, int64[0] s) => (float y) { y = Reshape(x, s) }",
        [{"x": floats(1, 1), "s": indices()}],
        [({"x": floats(2, 3), "s": indices()}, NO_FIT)],
    ),
    "list": (
        "(float[N,M] x, int64[1] s) => (float[A] y) { y = Reshape(x, s) }",
        [{"x": floats(2, 3), "s": indices(6)}, {"x": floats(2, 3), "s": indices(-1)}],
        [({"x": floats(2, 3), "s": indices(size)}, FITS) for size in (-5, 0, 5)],
    ),
    "as_long_as_another_tensor": (
        "(float[N,M] x, float[K] w) => (float[A] y) { s = Shape<start = 1>(x) y = Reshape(w, s) }",
        [{"x": floats(3, 4), "w": floats(4)}, {"x": floats(3, 0), "w": floats(0)}],
        [({"x": floats(3, 4), "w": floats(count)}, NO_FIT) for count in (1, 3, 5, 8)],
    ),
    "a_number_as_long_as_a_tensor": (
        "(float[N,M] x, float w) => (float[A] y) { s = Shape<start = 1>(x) y = Reshape(w, s) }",
        [{"x": floats(3, 1), "w": np.array(2, np.float32)}],
        [({"x": floats(3, 4), "w": np.array(2, np.float32)}, NO_FIT)],
    ),
    "rows_of_another_tensor": (
        "(float[N,4] x, float[K,L] w) => (float[A,B] y) { s = Shape(x) y = Reshape(w, s) }",
        [{"x": floats(3, 4), "w": floats(2, 6)}, {"x": floats(3, 4), "w": floats(4, 3)}],
        [({"x": floats(3, 4), "w": floats(*shape)}, NO_FIT) for shape in ((6, 4), (2, 3), (4, 6))],
    ),
    "rows_of_four": (
        "(float[K,L] w, int64[1] n) => (float[A,B] y) { f = Constant<value = int64[1] {4}>()"
        " s = Concat<axis = 0>(n, f) y = Reshape(w, s) }",
        [{"w": floats(2, 6), "n": indices(size)} for size in (3, -1)]
        + [{"w": floats(3, 4), "n": indices(0)}],
        [({"w": floats(2, 6), "n": indices(size)}, NO_FIT) for size in (2, 4, -3)]
        + [({"w": floats(2, 6), "n": indices(0)}, NO_FIT)],
    ),
    "rows_that_are_computed": (
        "(float[N,M] x, float[K,L] w) => (float[A,B] y) { n = Shape<end = 1>(x)"
        " f = Constant<value = int64[1] {-1}>() s = Concat<axis = 0>(n, f) y = Reshape(w, s) }",
        [{"x": floats(3, 4), "w": floats(2, 6)}, {"x": floats(2, 4), "w": floats(3, 2)}],
        [({"x": floats(5, 4), "w": floats(2, 6)}, NO_FIT)],
    ),
    "scales_along_the_last_axis": (
        "(float[N,M] x, float[S] s, uint8[S] z) => (uint8[A,B] y)"
        " { y = QuantizeLinear<axis = -1>(x, s, z) }",
        [levels((2, 3), 3), levels((2, 3), 1)],
        [(levels((2, 1), 3), UNLIKE), (levels((2, 3), 2), f"{UNLIKE}|inconsistent|mismatch")],
    ),
    "zero_points_along_an_axis": (
        "(uint8[N,C,M] x, float[S] s, uint8[S] z) => (float[D,E,F] y)"
        " { y = DequantizeLinear(x, s, z) }",
        [bytes_and_levels((2, 3, 4), 3)],
        [(bytes_and_levels((2, 1, 4), 3), UNLIKE)],
    ),
    **{
        f"zero_points_of_{dtype.__name__}": (
            f"{NEW} (float8{name}[N,M] x, float[S] s, float8{name}[S] z) => (float[A,B] y)"
            " { y = DequantizeLinear<axis = -1>(x, s, z) }",
            [float8s(dtype, 0, 0, 0), float8s(dtype, 0, -0.0, 0)],
            [(float8s(dtype, 0, 0, 1), ZERO_POINT), (float8s(dtype, 2, 0, 0), ZERO_POINT)],
        )
        for name, dtype in FLOAT8.items()
    },
    "range_to_far_end": (
        "(int32 a, int32 d) => (int32[N] y)"
        " { b = Constant<value = int32 {16777210}>() y = Range(a, b, d) }",
        [integers(np.int32, a=16777200, d=3), integers(np.int32, a=16777215, d=-2)],
        [(integers(np.int32, a=16777217, d=-3), EXACT)],
    ),
    "power_of_integers_by_others": (
        "(int64[N] x, uint64[N] y) => (int64[M] z) { z = Pow(x, y) }",
        [{"x": np.array([-3, 2]), "y": np.array([3, 4], np.uint64)}],
        [],
    ),
    "power_by_far_integers": (
        "(float[N] x, int32[N] y) => (float[M] z) { z = Pow(x, y) }",
        [{"x": -floats(3), "y": np.array([3, 4, 5], np.int32)}],
        [({"x": -floats(1), "y": np.array([2**31 - 1], np.int32)}, EXACT)],
    ),
    "zero_points_of_a_product": (
        "(uint8[N,K] x, uint8[K,M] w, uint8[S] a, uint8[T] b) => (int32[A,B] y)"
        " { y = MatMulInteger(x, w, a, b) }",
        [integers(np.uint8, x=[[1, 2]], w=[[3], [4]], a=[1], b=[2])],
        [
            (integers(np.uint8, x=[[1, 2]], w=[[3], [4]], a=[1], b=[2, 3]), UNLIKE),
            (integers(np.uint8, x=[[1, 2]], w=[[3], [4]], a=[1, 2], b=[2]), UNLIKE),
        ],
    ),
}
"""Each with inputs that are right, and with some that are not and what is said of them."""

NEVER_RIGHT = {
    "zeros_and_more_elements": "(float[1,1,2] x) => (float[A,B,C] y)"
    " { s = Constant<value = int64[3] {0, 0, 4}>() y = Reshape(x, s) }",
    "zeros_and_fewer_elements": "(float[1,1,2] x) => (float[A] y)"
    " { s = Constant<value = int64[1] {0}>() y = Reshape(x, s) }",
    "slopes_of_more_elements": "(float[1] i) => (float[A,B,C,D] y) { c = Constant<value = "
    "float[1,1,1,1] {-1}>() s = Constant<value = float[1,2,1] {1, 2}>() y = PRelu(c, s) }",
    "single_factor": "(float[1,1,2,2] x) => (float[A,B,C,D] y)"
    " { s = Constant<value = float {2}>() y = Resize(x, , s) }",
    "queries_for_two_and_keys_for_one": "(float[2,3,4,5] q, float[1,3,6,5] k, float[1,3,6,5] v)"
    " => (float[A,B,C,D] y) { y = Attention(q, k, v) }",
    "zero_point_for_each_of_many_kernels": "(uint8[1,1,2,2] x, uint8 a, uint8[2] b)"
    " => (int32[A,B,C,D] y) <uint8[1,1,1,1] w = {3}> { y = ConvInteger(x, w, a, b) }",
    "scale_for_each_of_many_channels": "(uint8[2,1,2] x, float[3] s) => (float[A,B,C] y)"
    " { y = DequantizeLinear(x, s) }",
    "zero_point_for_each_of_many_columns": "(uint8[2,3] x, uint8[3,1] w, uint8 a, uint8[2] b)"
    " => (int32[A,B] y) { y = MatMulInteger(x, w, a, b) }",
    "zero_point_of_float8": "(float8e5m2[2,3] x, float s) => (float[A,B] y)"
    " <float8e5m2 z = {1}> { y = DequantizeLinear(x, s, z) }",
    "gather": "(float[2,P] x) => (float[P] y)"
    " { i = Constant<value = int64 {2}>() y = Gather(x, i) }",
    "gather_nd": "(float[2] x) => (float y)"
    " { i = Constant<value = int64[1] {-3}>() y = GatherND(x, i) }",
    "gather_nd_of_constants": "(float[1] x) => (float[1] y) <float[2] d = {1, 2},"
    " int64[1,1] i = {2}> { z = GatherND(d, i) y = Add(x, z) }",
    "remainder_of_constants": "(int32[2] x) => (int32[2] y) <int32[2] d = {1, 2},"
    " int32[2] n = {1, 0}> { z = Mod(d, n) y = Add(x, z) }",
    "top_k_of_constants": "(float[2] x) => (float[2] y) <float[2] d = {1, 2}, int64[1] k = {3}>"
    " { z, i = TopK(d, k) y = Add(x, z) }",
    "loop_of_constants": "(float[1] x) => (float[1] y) <float[2] d = {1, 2}, float[1] s = {0},"
    " int64[1,1] i = {2}, int64 n = {2}, bool b = {1}> { z = Loop(n, b, s) <body = l (int64 t,"
    " bool c, float[1] p) => (bool e, float[1] q) { e = Identity(c) g = GatherND(d, i)"
    " q = Add(p, g) }> y = Add(x, z) }",
    "factors": "(float[1,1,H,W] x, float[8] s) => (float[A,B,C,D] y) { y = Resize(x, , s) }",
    "cubic_channels": "(float[1,3,4,4] x) => (float[A,B,C,D] y)"
    ' { s = Constant<value_ints = [1,4,4,4]>() y = Resize<mode = "cubic">(x, , , s) }',
    "quotient": "(int32[N] x) => (int32[N] y) { d = Constant<value = int32 {0}>() y = Div(x, d) }",
    "scan": "(float[2] s, float[0,2] x) => (float[2] y, float[0,2] z) { y, z = Scan"
    "<num_scan_inputs = 1, body = a (float[2] a, float[2] b) => (float[2] c, float[2] d)"
    " { c = Add(a, b) d = Identity(c) }>(s, x) }",
    "scan_of_growing_state": "(float[1] s, float[2,3] x) => (float[3] y) { y = Scan"
    "<num_scan_inputs = 1, body = a (float[1] a, float[3] b) => (float[3] c)"
    " { c = Add(a, b) }>(s, x) }",
    "updates_for_one_index": "(float[2,2] x, int64[K] i, float[2,2] u) => (float[A,B] y)"
    " { y = ScatterND(x, i, u) }",
    "shape_of_nothing": "(float[0,2] x, int64[3] s) => (float[A,B,C] y)"
    " { y = Reshape<allowzero = 1>(x, s) }",
    "scan_of_constants": "(float[2] s, float[N,1] x) => (float[2] y, float[A,1] z) { y, z = Scan"
    "<num_scan_inputs = 1, body = a (float[2] a, float[1] b) => (float[2] c, float[1] d)"
    " { c = Constant<value = float[2] {1, 2}>() d = Constant<value = float[1] {3}>() }>(s, x) }",
    "scan_of_states": "(float[2] s, float[N,1] x) => (float[2] y) { y = Scan"
    "<num_scan_inputs = 1, body = a (float[2] a, float[1] b) => (float[2] c)"
    " { c = Add(a, a) }>(s, x) }",
    "scan_of_unread_parts": "(float[2] s, float[N,1] x) => (float[2] y) { y, z ="
    " Scan<num_scan_inputs = 1, body = a (float[2] a, float[1] b) => (float[2] c, float[1] d)"
    " { c = Add(a, a) d = Neg(b) }>(s, x) }",
    "scan_of_parts_without_elements": "(float[2] s, float[1,0] x) => (float[2] y, float[1,0] z)"
    " { y, z = Scan<num_scan_inputs = 1, body = a (float[2] a, float[0] b) => (float[2] c,"
    " float[0] d) { c = Add(a, a) d = Identity(b) }>(s, x) }",
    "slice": "(float[N,4] x, int64[1] a) => (float[A,B] y) <int64[1] s = {1}, int64[1] e = {3}>"
    " { y = Slice(x, s, e, a) }",
    "slice_of_nothing": "(float[0,4] x, int64[1] a) => (float[A,B] y)"
    " <int64[1] s = {1}, int64[1] e = {3}> { y = Slice(x, s, e, a) }",
    "slopes": "(float[3] x, float[2,3] s) => (float[A,B] y) { t = PRelu(x, s)"
    " f = Constant<value = int64[2] {1, -1}>() y = Reshape(t, f) }",
    "scatter_elements": "(float[2,3] x, int64[1,4] i, float[1,4] u) => (float[2,3] y)"
    " { y = ScatterElements(x, i, u) }",
    "squeeze": "(float[N,2] x) => (float[A] y) <int64[1] a = {-1}> { t = Squeeze(x, a)"
    " n = Neg(t) f = Constant<value = int64[1] {-1}>() y = Reshape(n, f) }",
    "range_of_far_steps": "(int32 a, int32 b) => (int32[N] y)"
    " { d = Constant<value = int32 {2147483647}>() y = Range(a, b, d) }",
    "range_between_far_ends": "(int64 d) => (int64[N] y)"
    " { a = Constant<value = int64 {2147483647}>()"
    " b = Constant<value = int64 {2147483646}>() y = Range(a, b, d) }",
    "tile_by_few": "(float[A,B,C,D,E] x) => (float[F,G,H,I,J] y)"
    " { r = Constant<value = int64[4] {7, 6, 4, 2}>() y = Tile(x, r) }",
    "tile": "(float[2,2] x, int64[0] r) => (float[A,B] y) { y = Tile(x, r) }",
    "rotary": "(float[1,2,3,4] x, float[1,3,4] c, float[1,3,1] s) => (float[A,B,C,D] y)"
    " { y = RotaryEmbedding(x, c, s) }",
    "weights": "(float[2,1,2] x, float[A,B,C] r) => (float[D,E,F,G] y) {"
    " w = Constant<value = float[1,3,2] {1, 1, 1, 1, 1, 1}>() y = GRU<hidden_size = 3>(x, w, r) }",
    "split": "(float[2] x) => (float[A] y, float[B] z)"
    " { s = Constant<value = int64[2] {-1, 3}>() y, z = Split(x, s) }",
}


def outputs(request: InferRequest, inputs: Inputs) -> dict[str, Any]:
    return {**request.infer(inputs)}


def case_of(text: str) -> Case:
    model = parse(f"f {text.removeprefix(NEW)}")
    if text.startswith(NEW):
        model.opset_import[0].version = 24
    return Case("f", model, {})


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_right_runs_and_what_is_not_fails(plugin: Plugin, name: str) -> None:
    text, right, wrong = NETWORKS[name]
    case = case_of(text)
    request = InferRequest(plugin.load_network(Load(case.network)))
    for inputs, why in wrong:
        with pytest.raises(InvalidArgument, match=why):
            request.infer(inputs)
    for inputs in right:
        found, expected = outputs(request, inputs), case.expected(inputs)
        assert list(found) == list(expected)
        for each, value in expected.items():
            np.testing.assert_allclose(found[each], value, rtol=1e-5, atol=1e-6)
    for inputs, why in wrong:  # with the memory of runs that were right
        with pytest.raises(InvalidArgument, match=why):
            request.infer(inputs)


@pytest.mark.parametrize(
    ("layer", "pattern", "wrong"),
    [
        ("Squeeze", [0], "axis to remove|incompatible"),
        ("Reshape", [0, 0, 0], ""),
        ("Reshape", [0, 3, 0, 1], ""),
        ("Reshape<allowzero = 1>", [1, 3, 5], ""),
    ],
)
def test_zeros_in_the_first_request_for_a_shape_of_a_constant_are_no_error(
    plugin: Plugin, layer: str, pattern: list[int], wrong: str
) -> None:
    sizes = ",".join("ABC" if layer != "Squeeze" else "AB")
    if len(pattern) > 3:
        sizes += ",D"
    values = ", ".join(str(each) for each in range(15))
    text = f"""(int64[{len(pattern)}] p) => (float[{sizes}] y) <float[1,3,5] x = {{{values}}}> {{
        y = {layer}(x, p)
    }}"""
    case = case_of(text)
    request = InferRequest(plugin.load_network(Load(case.network)))
    for _ in range(2):
        inputs = {"p": indices(*pattern)}
        np.testing.assert_array_equal(outputs(request, inputs)["y"], case.expected(inputs)["y"])
        for axis in (1, 3, -4, 2**31 - 1, -(2**31)) if wrong else ():
            with pytest.raises(InvalidArgument, match=wrong):
                request.infer({"p": indices(axis)})


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_negative_pads_cut_off_elements_before_others_are_added(plugin: Plugin, mode: str) -> None:
    text = f'(float[N] x, int64[2] p) => (float[A] y) {{ y = Pad<mode = "{mode}">(x, p) }}'
    request = InferRequest(plugin.load_network(Load(case_of(text).network)))
    x = floats(4)
    for before, after in product(range(-5, 6), repeat=2):
        kept = x[max(-before, 0) : max(4 - max(-after, 0), 0)]
        try:
            found = outputs(request, {"x": x, "p": indices(before, after)})["y"]
        except InvalidArgument:
            enough = {"constant": 0, "edge": 1, "reflect": 1 + max(before, after, 0)}[mode]
            assert 4 + min(before, 0) + min(after, 0) < enough
        else:
            added: Any = (max(before, 0), max(after, 0)), mode
            np.testing.assert_array_equal(found, np.pad(kept, *added))


@pytest.mark.parametrize("name", NEVER_RIGHT)
def test_a_constant_that_is_never_right_is_refused_at_the_load(plugin: Plugin, name: str) -> None:
    network = case_of(NEVER_RIGHT[name]).network
    with pytest.raises(UnsupportedLayers):
        plugin.load_network(Load(network))
    assert plugin.query_network(network, {}).unsupported


def test_the_error_names_the_layer_and_the_input_that_is_empty(plugin: Plugin) -> None:
    case = case_of(NETWORKS["average"][0])
    request = InferRequest(plugin.load_network(Load(case.network)))
    with pytest.raises(InvalidArgument) as raised:
        request.infer(image(0, 3))
    assert "layer 'y'" in raised.value.message
    assert "load the network on CPU" in raised.value.message
    assert raised.value.field == "inputs['x']"


def test_an_imported_network_is_guarded_as_well(plugin: Plugin) -> None:
    case = case_of(NETWORKS["gather_nd"][0])
    native = plugin.load_network(Load(case.network)).export()
    assert native
    request = InferRequest(plugin.load_network(Load(case.network, native=native)))
    assert outputs(request, points(1))["y"].tolist() == [2]
    with pytest.raises(InvalidArgument, match=INDEX):
        request.infer(points(3))


@pytest.mark.parametrize("stamp", [b"", b"headrace guards 0\n"])
def test_a_network_that_was_exported_before_there_were_guards_is_compiled_anew(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch, stamp: bytes
) -> None:
    case = case_of(NETWORKS["gather_nd"][0])
    with monkeypatch.context() as patch:
        patch.setattr(session, "add_guards", lambda *_: None)
        patch.setattr(guards, "_STAMP", stamp)
        unguarded = plugin.load_network(Load(case.network))
        native = unguarded.export()
    assert native
    network = plugin.load_network(Load(case.network, native=native))
    assert not network.restored
    assert any("checks requests differently" in each for each in network.notes)
    with pytest.raises(InvalidArgument, match=INDEX):
        InferRequest(network).infer(points(3))


@pytest.mark.parametrize("stamp", [b"", b"headrace guards 0\n"])
def test_a_cache_entry_from_before_there_were_guards_is_replaced(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stamp: bytes
) -> None:
    network = case_of(NETWORKS["gather_nd"][0]).network
    cache = NetworkCache(tmp_path, b"k" * 32, 2**30)
    with services(cache=cache) as those:
        plugin = OpenVinoPlugin("OPENVINO", those, {"CACHE_DIR": "a"}, lambda: compiler)
        with monkeypatch.context() as patch:
            patch.setattr(session, "add_guards", lambda *_: None)
            patch.setattr(guards, "_STAMP", stamp)
            plugin.load_network(Load(network))
        anew, again = plugin.load_network(Load(network)), plugin.load_network(Load(network))
        assert "compiled anew: the cache's entry was not used" in anew.notes
        assert [each.loaded_from_cache for each in (anew, again)] == [False, True]
        for each in (anew, again):
            with pytest.raises(InvalidArgument, match=INDEX):
                InferRequest(each).infer(points(3))
        plugin.close()


def test_a_network_of_known_shapes_and_without_indices_has_no_guards(plugin: Plugin) -> None:
    text = "(float[2,4] x, float[4,4] w) => (float[2,4] y) { m = MatMul(x, w) y = Relu(m) }"
    network = plugin.load_network(Load(case_of(text).network))
    assert network._sound_pool().compiled.guards is None  # type: ignore[attr-defined]


def test_integers_that_come_of_shapes_need_no_guards(plugin: Plugin) -> None:
    text = "(float[N,M] x) => (int64[1] y) { s = Shape(x) y = ReduceProd(s) }"
    network = plugin.load_network(Load(case_of(text).network))
    assert network._sound_pool().compiled.guards is None  # type: ignore[attr-defined]
    text = (
        "(float[N,M] x) => (int64[1] y) { s = Shape(x) a = Add(s, s) m = Mul(a, s)"
        " y = ReduceSum(m) }"
    )
    network = plugin.load_network(Load(case_of(text).network))
    assert network._sound_pool().compiled.guards is None  # type: ignore[attr-defined]


def test_axes_that_all_outputs_share_need_no_guards(plugin: Plugin) -> None:
    text = (
        "(float[N,S,4] x, float[4,4] w, float[4] s) => (float[A,B,C] y) { m = MatMul(x, w)"
        " n = LayerNormalization(m, s) a = Softmax(n) c = Concat<axis = 1>(a, x) y = Relu(c) }"
    )
    network = plugin.load_network(Load(case_of(text).network))
    assert network._sound_pool().compiled.guards is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(("queries", "keys"), [(0, 6), (4, 6)])
@pytest.mark.parametrize("known", [True, False])
def test_attention_without_queries_ends_no_process(
    plugin: Plugin, queries: int, keys: int, known: bool
) -> None:
    """With shapes that are known OpenVINO computed the causal mask at the load, out of bounds."""
    shapes = {"q": (2, 3, queries, 8), "k": (2, 3, keys, 8)}
    node = onnx.helper.make_node("Attention", ["q", "k", "k"], ["y"], is_causal=1)
    declare = onnx.helper.make_tensor_value_info
    inputs = [
        declare(name, onnx.TensorProto.FLOAT, shape if known else (2, 3, None, 8))
        for name, shape in shapes.items()
    ]
    output = declare("y", onnx.TensorProto.FLOAT, (2, 3, None, 8))
    graph = onnx.helper.make_graph([node], "f", inputs, [output])
    opset = onnx.helper.make_opsetid("", 24)
    case = Case("f", onnx.helper.make_model(graph, opset_imports=[opset], ir_version=11), {})
    values = {name: floats(*shape) / 300 for name, shape in shapes.items()}
    found = outputs(InferRequest(plugin.load_network(Load(case.network))), values)
    np.testing.assert_allclose(found["y"], case.expected(values)["y"], rtol=1e-5)
