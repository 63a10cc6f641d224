"""The layers that random networks grow by: each takes values of a pool, and makes its constants.

A layer need not be valid: ONNX Runtime, which computes it, decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

from tools.fuzz.devices.values import Array, Generator


class Pool:
    """The values that a layer may read. `opset` is the version of ONNX's operators."""

    def __init__(self, opset: int, values: Mapping[str, Array], rng: Generator) -> None:
        self.opset = opset
        self._values = values
        self._rng = rng

    def any(self, kinds: str = "f", ranks: Sequence[int] = range(7)) -> str | None:
        """The name of a value of one of these kinds of types, more often a late one."""
        fitting = [
            name
            for name, value in self._values.items()
            if value.dtype.kind in kinds and value.ndim in ranks
        ]
        if not fitting:
            return None
        late = fitting[len(fitting) // 2 :]
        return str(self._rng.choice(late if self._rng.random() < 0.7 else fitting))

    def __getitem__(self, name: str) -> Array:
        return self._values[name]


@dataclass(frozen=True, slots=True)
class Grown:
    """A layer.

    Attributes:
        inputs: names of values, ``""`` for one that is absent, and None for the next constant.
        results: how many outputs it has.
    """

    operator: str
    inputs: Sequence[str | None]
    constants: Sequence[Array] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: int = 1


Make = Callable[[Pool, Generator], "Grown | None"]
MakeOf = Callable[[Pool, Generator, str], "Grown | None"]


def _taking(kinds: str = "f", ranks: Sequence[int] = range(7)) -> Callable[[MakeOf], Make]:
    """Draws a value as `Pool.any`, for what makes a layer of it; None if there is none."""

    def taking(make_of: MakeOf) -> Make:
        def make(pool: Pool, rng: Generator) -> Grown | None:
            name = pool.any(kinds, ranks)
            return None if name is None else make_of(pool, rng, name)

        return make

    return taking


def _unary(operator: str, kinds: str = "f", **attributes: Any) -> Make:
    return _taking(kinds)(lambda _, __, name: Grown(operator, [name], (), attributes))


def _binary(operator: str, kinds: str = "f") -> Make:
    """With another value of the same type, or a constant of the value's last axes."""

    @_taking(kinds)
    def make(pool: Pool, rng: Generator, name: str) -> Grown | None:
        value = pool[name]
        other = pool.any(value.dtype.kind)
        if other is not None and pool[other].dtype == value.dtype and rng.random() < 0.6:
            return Grown(operator, [name, other])
        shape = value.shape[rng.integers(value.ndim + 1) :] if value.ndim else ()
        constant = _constant(shape, value.dtype, rng)
        order: list[str | None] = [name, None] if rng.random() < 0.7 else [None, name]
        return Grown(operator, order, [constant])

    return make


def _constant(shape: Sequence[int], dtype: np.dtype[Any], rng: Generator) -> Array:
    if dtype.kind == "f":
        return np.asarray(rng.uniform(0.3, 2, shape) * rng.choice([-1, 1])).astype(dtype)
    return np.asarray(rng.integers(1, 4, shape)).astype(dtype)


def _axis(value: Array, rng: Generator) -> int:
    return int(rng.integers(-value.ndim, value.ndim)) if value.ndim else 0


def _along_axis(operator: str, kinds: str = "f", **attributes: Any) -> Make:
    @_taking(kinds, range(1, 7))
    def make(pool: Pool, rng: Generator, name: str) -> Grown | None:
        return Grown(operator, [name], (), {"axis": _axis(pool[name], rng), **attributes})

    return make


def _reduce(operator: str, kinds: str = "f") -> Make:
    since = 13 if operator == "ReduceSum" else 18

    @_taking(kinds, range(1, 7))
    def make(pool: Pool, rng: Generator, name: str) -> Grown | None:
        axes = [_axis(pool[name], rng)]
        keep = {"keepdims": int(rng.integers(2))}
        if pool.opset < since:
            return Grown(operator, [name], (), {"axes": axes, **keep})
        return Grown(operator, [name, None], [np.array(axes, np.int64)], keep)

    return make


@_taking("f", range(1, 5))
def _mat_mul(pool: Pool, rng: Generator, name: str) -> Grown | None:
    value, other = pool[name], pool.any("f", range(2, 5))
    if other is not None and rng.random() < 0.3:
        return Grown("MatMul", [name, other])
    weights = _weights((value.shape[-1], int(rng.integers(1, 6))), value.dtype, rng)
    return Grown("MatMul", [name, None], [weights])


def _weights(shape: Sequence[int], dtype: np.dtype[Any], rng: Generator) -> Array:
    return np.asarray(rng.normal(0, 0.7, shape)).astype(dtype)


@_taking("f", [2])
def _gemm(pool: Pool, rng: Generator, name: str) -> Grown | None:
    columns = int(rng.integers(1, 6))
    value = pool[name]
    weights = _weights((columns, value.shape[1]), value.dtype, rng)
    bias = _weights((columns,), value.dtype, rng)
    scaled = {"alpha": 0.5} if rng.random() < 0.3 else {}
    return Grown("Gemm", [name, None, None], [weights, bias], {"transB": 1, **scaled})


@_taking("f", [3, 4])
def _conv(pool: Pool, rng: Generator, name: str) -> Grown | None:
    value = pool[name]
    channels, spatial = value.shape[1], value.ndim - 2
    kernel = [int(rng.integers(1, 4)) for _ in range(spatial)]
    pads = [each // 2 for each in kernel] * 2
    group = channels if rng.random() < 0.3 else 1
    rows = channels if group > 1 else int(rng.integers(1, 5))
    weights = _weights((rows, channels // max(group, 1), *kernel), value.dtype, rng)
    attributes = {"pads": pads, "group": group, "strides": [int(rng.integers(1, 3))] * spatial}
    if rng.random() < 0.5:
        return Grown("Conv", [name, None], [weights], attributes)
    return Grown(
        "Conv", [name, None, None], [weights, _weights((rows,), value.dtype, rng)], attributes
    )


def _pool(operator: str) -> Make:
    @_taking("f", [3, 4])
    def make(pool: Pool, rng: Generator, name: str) -> Grown | None:
        spatial = pool[name].ndim - 2
        attributes = {
            "kernel_shape": [int(rng.integers(1, 4)) for _ in range(spatial)],
            "strides": [int(rng.integers(1, 3))] * spatial,
            "ceil_mode": int(rng.random() < 0.3),
        }
        if rng.random() < 0.4:
            attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER"]))
        return Grown(operator, [name], (), attributes)

    return make


@_taking("f", range(1, 5))
def _normalize(pool: Pool, rng: Generator, name: str) -> Grown | None:
    if pool.opset < 17:
        return None
    value = pool[name]
    scale, bias = (_weights(value.shape[-1:], value.dtype, rng) for _ in range(2))
    return Grown("LayerNormalization", [name, None, None], [scale, bias])


@_taking("f", [2, 3, 4])
def _batch_normalize(pool: Pool, rng: Generator, name: str) -> Grown | None:
    value = pool[name]
    parts = [np.abs(_weights(value.shape[1:2], value.dtype, rng)) + 0.1 for _ in range(4)]
    return Grown("BatchNormalization", [name, None, None, None, None], parts)


@_taking("fib", range(2, 6))
def _transpose(pool: Pool, rng: Generator, name: str) -> Grown | None:
    perm = [int(each) for each in rng.permutation(pool[name].ndim)]
    return Grown("Transpose", [name], (), {"perm": perm})


@_taking("fib", range(1, 6))
def _reshape(pool: Pool, rng: Generator, name: str) -> Grown | None:
    value = pool[name]
    choices: list[list[int]] = [[-1], [0, -1], [1, -1], [-1, 1], [0, 1, -1], [-1, value.shape[-1]]]
    shape = np.array(choices[rng.integers(len(choices))], np.int64)
    return Grown("Reshape", [name, None], [shape])


def _by_shape(operator: str) -> Make:
    """With a shape that another layer computes."""

    def make(pool: Pool, _: Generator) -> Grown | None:
        name, shape = pool.any("fi"), pool.any("i", [1])
        return None if name is None or shape is None else Grown(operator, [name, shape])

    return make


def _axes_layer(operator: str) -> Make:
    @_taking("fib", range(5))
    def make(pool: Pool, rng: Generator, name: str) -> Grown | None:
        value = pool[name]
        ones = [at for at, size in enumerate(value.shape) if size == 1]
        if operator == "Squeeze" and not ones:
            return None
        axis = int(rng.choice(ones)) if operator == "Squeeze" else int(rng.integers(value.ndim + 1))
        return Grown(operator, [name, None], [np.array([axis], np.int64)])

    return make


@_taking("fi", range(1, 5))
def _concat(pool: Pool, rng: Generator, name: str) -> Grown | None:
    value = pool[name]
    other = pool.any(value.dtype.kind, [value.ndim]) or name
    return Grown("Concat", [name, other], (), {"axis": _axis(value, rng)})


@_taking("fi", range(1, 5))
def _slice(pool: Pool, rng: Generator, name: str) -> Grown | None:
    start, end = int(rng.integers(-3, 3)), int(rng.choice([1, 2, -1, 2**31 - 1]))
    numbers = [[start], [end], [_axis(pool[name], rng)], [int(rng.choice([1, 1, 2]))]]
    return Grown("Slice", [name, *[None] * 4], [np.array(each, np.int64) for each in numbers])


@_taking("fi", range(1, 5))
def _gather(pool: Pool, rng: Generator, name: str) -> Grown | None:
    value = pool[name]
    axis = {"axis": _axis(value, rng)}
    indices = pool.any("i", range(3))
    if indices is not None and rng.random() < 0.5:
        return Grown("Gather", [name, indices], (), axis)
    return Grown("Gather", [name, None], [np.array(rng.choice([0, -1, 1]), np.int64)], axis)


@_taking("i", range(3))
def _embed(pool: Pool, rng: Generator, indices: str) -> Grown | None:
    return Grown("Gather", [None, indices], [_weights((5, 3), np.dtype(np.float32), rng)])


@_taking("fibu")
def _cast(pool: Pool, rng: Generator, name: str) -> Grown | None:
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL)
    return Grown("Cast", [name], (), {"to": int(rng.choice(kinds))})


def _where(pool: Pool, rng: Generator) -> Grown | None:
    condition, name = pool.any("b"), pool.any("fi")
    if condition is None or name is None:
        return None
    other = pool.any(pool[name].dtype.kind)
    if other is not None and rng.random() < 0.5:
        return Grown("Where", [condition, name, other])
    return Grown("Where", [condition, None, name], [_constant((), pool[name].dtype, rng)])


@_taking("f", range(1, 5))
def _pad(pool: Pool, rng: Generator, name: str) -> Grown | None:
    pads = rng.integers(-1, 3, 2 * pool[name].ndim) * (rng.random(2 * pool[name].ndim) < 0.5)
    mode = str(rng.choice(["constant", "reflect", "edge"]))
    return Grown("Pad", [name, None], [pads.astype(np.int64)], {"mode": mode})


@_taking("f", [3, 4])
def _resize(pool: Pool, rng: Generator, name: str) -> Grown | None:
    scales = [1, 1, *(float(rng.choice([0.5, 1, 2])) for _ in range(pool[name].ndim - 2))]
    mode = str(rng.choice(["nearest", "linear"]))
    where = str(rng.choice(["half_pixel", "asymmetric", "align_corners"]))
    return Grown(
        "Resize",
        [name, "", None],
        [np.array(scales, np.float32)],
        {"mode": mode, "coordinate_transformation_mode": where},
    )


@_taking("f", range(1, 5))
def _split(pool: Pool, rng: Generator, name: str) -> Grown | None:
    value = pool[name]
    axis = _axis(value, rng)
    first = int(rng.integers(0, value.shape[axis] + 1)) if value.shape[axis] else 0
    parts = np.array([first, value.shape[axis] - first], np.int64)
    return Grown("Split", [name, None], [parts], {"axis": axis}, 2)


@_taking("f", range(1, 5))
def _top_k(pool: Pool, rng: Generator, name: str) -> Grown | None:
    axis = {"axis": _axis(pool[name], rng), "largest": int(rng.integers(2))}
    return Grown("TopK", [name, None], [np.array([1], np.int64)], axis, 2)


@_taking("f", range(1, 5))
def _cumulate(pool: Pool, rng: Generator, name: str) -> Grown | None:
    return Grown("CumSum", [name, None], [np.array(_axis(pool[name], rng), np.int64)])


def _recurrent(operator: str, gates: int) -> Make:
    @_taking("f", [3])
    def make(pool: Pool, rng: Generator, name: str) -> Grown | None:
        value, hidden = pool[name], 3
        both = rng.random() < 0.4
        count = 2 if both else 1
        weights = [
            _weights((count, gates * hidden, size), value.dtype, rng)
            for size in (value.shape[2], hidden)
        ]
        attributes: dict[str, Any] = {"hidden_size": hidden}
        if both:
            attributes["direction"] = "bidirectional"
        if operator == "GRU":
            attributes["linear_before_reset"] = int(rng.integers(2))
        return Grown(operator, [name, None, None], weights, attributes, 2)

    return make


@_taking("f")
def _quantize(pool: Pool, rng: Generator, name: str) -> Grown | None:
    if pool[name].dtype != np.float32:
        return None
    zero = np.array(rng.integers(0, 100), np.dtype(str(rng.choice(["uint8", "int8"]))))
    return Grown("QuantizeLinear", [name, None, None], [np.array(0.07, np.float32), zero])


@_taking("iu")
def _dequantize(pool: Pool, rng: Generator, name: str) -> Grown | None:
    if pool[name].dtype.itemsize > 1:
        return None
    zero = np.array(rng.integers(0, 100), pool[name].dtype)
    return Grown("DequantizeLinear", [name, None, None], [np.array(0.07, np.float32), zero])


def _branch(pool: Pool, rng: Generator) -> Grown | None:
    """An If of two layers that read a value from outside."""
    condition, name = pool.any("b", [0]), pool.any("f")
    if condition is None or name is None:
        return None
    kind = helper.np_dtype_to_tensor_dtype(pool[name].dtype)
    bodies = {
        branch: helper.make_graph(
            [helper.make_node(str(rng.choice(["Neg", "Abs", "Relu"])), [name], [branch])],
            branch,
            [],
            [helper.make_tensor_value_info(branch, kind, None)],
        )
        for branch in ("then_branch", "else_branch")
    }
    return Grown("If", [condition], (), bodies)


_MADE: Final[Sequence[tuple[str, Make]]] = (
    *(
        (name, _unary(name))
        for name in (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Exp",
            "Neg",
            "Abs",
            "Sqrt",
            "Erf",
            "Softplus",
            "Floor",
            "Ceil",
            "Round",
            "Reciprocal",
            "HardSigmoid",
            "LeakyRelu",
            "Elu",
            "Sin",
            "Identity",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "Flatten",
            "IsNaN",
            "Sign",
        )
    ),
    *((name, _unary(name, "fibu")) for name in ("Shape", "Size", "NonZero")),
    ("Not", _unary("Not", "b")),
    *((name, _binary(name, "fi")) for name in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    *((name, _binary(name)) for name in ("Add", "Mul", "Pow", "PRelu")),
    *((name, _binary(name, "fi")) for name in ("Equal", "Less", "Greater")),
    *((name, _binary(name, "b")) for name in ("And", "Or")),
    *((name, _along_axis(name)) for name in ("Softmax", "LogSoftmax", "Hardmax", "ArgMax")),
    *((f"Reduce{name}", _reduce(f"Reduce{name}")) for name in ("Sum", "Mean", "Max", "Min", "L2")),
    ("ReduceProd", _reduce("ReduceProd", "fi")),
    *(("MatMul", _mat_mul),) * 3,
    *(("Conv", _conv),) * 3,
    *(("Reshape", _reshape),) * 2,
    *(("Concat", _concat),) * 2,
    *(("Gather", _gather),) * 2,
    ("Gemm", _gemm),
    ("MaxPool", _pool("MaxPool")),
    ("AveragePool", _pool("AveragePool")),
    ("LayerNormalization", _normalize),
    ("BatchNormalization", _batch_normalize),
    ("Transpose", _transpose),
    ("Reshape", _by_shape("Reshape")),
    ("Expand", _by_shape("Expand")),
    ("Squeeze", _axes_layer("Squeeze")),
    ("Unsqueeze", _axes_layer("Unsqueeze")),
    ("Slice", _slice),
    ("Gather", _embed),
    ("Cast", _cast),
    ("Where", _where),
    ("Pad", _pad),
    ("Resize", _resize),
    ("Split", _split),
    ("TopK", _top_k),
    ("CumSum", _cumulate),
    ("LSTM", _recurrent("LSTM", 4)),
    ("GRU", _recurrent("GRU", 3)),
    ("QuantizeLinear", _quantize),
    ("DequantizeLinear", _dequantize),
    ("If", _branch),
)
LAYERS: Final = tuple(_MADE)
"""Each with its operator; one that is there twice is drawn twice as often."""
