"""A network whose sums are off by as much as rounding may make them.

Adding up some hundreds of products in float32 is off by about one part in a million of the largest
result, by another amount for each order of adding. What that does to the network's outputs is what
backends may differ by.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

CHANGE = 1e-6

_SUMS = frozenset(
    (
        "AveragePool",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "DFT",
        "DynamicQuantizeLSTM",
        "Einsum",
        "GRU",
        "Gemm",
        "GlobalAveragePool",
        "InstanceNormalization",
        "LSTM",
        "LayerNormalization",
        "MatMul",
        "RNN",
        "ReduceL2",
        "ReduceMean",
        "ReduceSum",
        "ReduceSumSquare",
        "STFT",
        "Softmax",
    )
)


def changed_sums(path: Path, seed: int) -> bytes:
    """The network, with each result of a sum changed by up to CHANGE of the largest one of its
    tensor, at random."""
    model = onnx.load(path)
    for index, graph in enumerate(_graphs(model.graph)):
        nodes = [each for node in graph.node for each in _changed(node, seed + 10 * index)]
        del graph.node[:]
        graph.node.extend(nodes)
    return model.SerializeToString()


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and the bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node:
                    yield from _graphs(body)


def _changed(node: onnx.NodeProto, seed: int) -> Iterator[onnx.NodeProto]:
    yield node
    if node.op_type not in _SUMS:
        return
    for place, name in enumerate(node.output):
        if not name:
            continue
        exact, noise, size, most, change = (f"{name}/{each}" for each in range(5))
        node.output[place] = exact
        make = onnx.helper.make_node
        yield make(
            "RandomUniformLike", [exact], [noise], low=-CHANGE, high=CHANGE, seed=float(seed)
        )
        yield make("Abs", [exact], [size])
        yield make("ReduceMax", [size], [most], keepdims=0)
        yield make("Mul", [noise, most], [change])
        yield make("Add", [exact, change], [name])
