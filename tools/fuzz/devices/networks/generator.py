"""Makes whole small networks from a seed and a number, and requests of several sizes for each.

A network grows a layer at a time. A layer stays if ONNX Runtime computes it, so most networks are
valid. The sizes of the inputs are symbols, numbers or nothing; each request gives the symbols other
values, and some requests do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
from onnx import helper

from tools.fuzz.devices.networks.layers import LAYERS, Pool
from tools.fuzz.devices.values import Array, Generator, changed
from tools.fuzz.devices.variant import Feed, Variant

_FEWEST, _MOST = 2, 8
_SYMBOLS: Final = {"N": (1, 2, 3, 5), "M": (2, 4, 7), "K": (3, 6)}
_MISFIT: Final = 4
_OPSETS: Final = (13, 15, 17, 18, 20, 21)
_TRIES: Final = 8
_MOST_BYTES: Final = 1 << 20
_TYPES: Final = (*(np.float32,) * 6, np.int64, np.int64, np.int32, np.uint8, np.bool_, np.float16)


@dataclass(frozen=True, slots=True)
class _Input:
    """An input: its type, the symbol or size of each axis, and what is declared of them."""

    dtype: np.dtype[Any]
    axes: tuple[str | int, ...]
    declared: tuple[str | int | None, ...] | None

    def value(self, sizes: Mapping[str, int], rng: Generator) -> Array:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in self.axes]
        if self.dtype.kind == "f":
            return np.asarray(rng.normal(0, 1.5, shape)).astype(self.dtype)
        low, high = (-3, 4) if self.dtype.kind == "i" else (0, 2 if self.dtype.kind == "b" else 9)
        return np.asarray(rng.integers(low, high, shape)).astype(self.dtype)


@dataclass(frozen=True, slots=True)
class _Network:
    opset: int
    inputs: dict[str, _Input]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)


class NetworkGenerator:
    """The same seed and number make the same network and requests.

    Attributes:
        operators: those that networks are made of.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.operators = sorted({operator for operator, _ in LAYERS})
        onnxruntime.set_default_logger_severity(4)

    def variant(self, number: int) -> Variant:
        rng = np.random.default_rng([self.seed, number])
        sizes = _sizes(rng)
        one_batch = bool(rng.integers(2))  # as BATCH can serve
        inputs = {f"x{at}": _input(rng, one_batch) for at in range(rng.integers(1, 4))}
        network = _Network(int(rng.choice(_OPSETS)), inputs)
        first = {name: each.value(sizes, rng) for name, each in inputs.items()}
        values = dict(first)
        wanted = int(rng.integers(_FEWEST, _MOST + 1))
        for _ in range(_TRIES * wanted):
            if len(network.nodes) < wanted:
                _grow(network, values, rng)
        model = _model(network, values, rng)
        operators = [node.op_type for node in network.nodes] or ["nothing"]
        return Variant(
            f"{self.seed}:{number}",
            "+".join(operators),
            operators[-1],
            model.SerializeToString(),
            tuple(_feeds(network, first, sizes, rng)),
        )


def _sizes(rng: Generator) -> dict[str, int]:
    return {symbol: int(rng.choice(values)) for symbol, values in _SYMBOLS.items()}


def _input(rng: Generator, one_batch: bool) -> _Input:
    dtype = np.dtype(_TYPES[rng.integers(len(_TYPES))])
    rank = int(rng.choice([0, 1, 2, 2, 3, 3, 4, 4]))
    axes: list[str | int] = [
        str(rng.choice([*_SYMBOLS])) if rng.random() < 0.5 else int(rng.choice([1, 2, 3, 4, 6]))
        for _ in range(max(rank, 1) if one_batch else rank)
    ]
    if one_batch:
        axes[0] = "N"
    if rng.random() < 0.05:
        return _Input(dtype, tuple(axes), None)
    declared = [None if isinstance(axis, str) and rng.random() < 0.1 else axis for axis in axes]
    return _Input(dtype, tuple(axes), tuple(declared))


def _grow(network: _Network, values: dict[str, Array], rng: Generator) -> None:
    """Adds a layer, if ONNX Runtime computes the one that is drawn."""
    _, make = LAYERS[rng.integers(len(LAYERS))]
    grown = make(Pool(network.opset, values, rng), rng)
    if grown is None:
        return
    at = len(network.nodes)
    results = [f"v{at}_{place}" for place in range(grown.results)]
    constants = {f"c{at}_{place}": value for place, value in enumerate(grown.constants)}
    names = iter(constants)
    given = [next(names) if name is None else name for name in grown.inputs]
    node = helper.make_node(grown.operator, given, results, name=f"layer{at}", **grown.attributes)
    outputs = _computed(node, network.opset, {**values, **constants})
    if outputs is not None:
        network.nodes.append(node)
        network.constants.update(constants)
        values.update(zip(results, outputs, strict=True))


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a layer reads, also in its bodies."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _read(inner)


def _computed(node: onnx.NodeProto, opset: int, values: Mapping[str, Array]) -> list[Array] | None:
    """What ONNX Runtime makes of the layer; None if it refuses, or if that is too much."""
    read = dict.fromkeys(_read(node))
    inputs = [_port(name, values[name].dtype, values[name].shape) for name in read]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "layer", inputs, outputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            _model_of(graph, opset).SerializeToString(), options, ["CPUExecutionProvider"]
        )
        found = session.run(None, {name: values[name] for name in read})
    except Exception:  # noqa: BLE001 - whatever it does not take is no layer
        return None
    small = all(isinstance(each, np.ndarray) and each.nbytes <= _MOST_BYTES for each in found)
    return found if small else None


def _port(name: str, dtype: np.dtype[Any], shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def _model_of(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _model(network: _Network, values: Mapping[str, Array], rng: Generator) -> onnx.ModelProto:
    """The network. Its outputs are what no layer reads, and some of the rest."""
    read = {name for node in network.nodes for name in _read(node)}
    made = [name for node in network.nodes for name in node.output]
    outputs = [name for name in made if name not in read or rng.random() < 0.1]
    graph = helper.make_graph(
        network.nodes,
        "network",
        [_port(name, each.dtype, each.declared) for name, each in network.inputs.items()],
        [_port(name, values[name].dtype, [None] * values[name].ndim) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in network.constants.items()],
    )
    return _model_of(graph, network.opset)


def _feeds(
    network: _Network, first: Feed, sizes: Mapping[str, int], rng: Generator
) -> list[dict[str, Any]]:
    """The first request, alike ones, ones of other sizes and those sizes again, one with other
    values, and one that may not fit."""

    def given(sizes: Mapping[str, int]) -> dict[str, Any]:
        return {name: each.value(sizes, rng) for name, each in network.inputs.items()}

    others = _sizes(rng)
    smallest = dict.fromkeys(_SYMBOLS, int(rng.random() < 0.8))
    odd = {
        name: changed(value, rng) if rng.random() < 0.5 else value
        for name, value in given(sizes).items()
    }
    misfits = {
        name: each.value({**sizes, str(rng.choice([*_SYMBOLS])): _MISFIT}, rng)
        for name, each in network.inputs.items()
    }
    usual = [given(each) for each in (sizes, others, sizes, others, smallest)]
    return [dict(first), *usual, odd, misfits, given(sizes)]
