"""The device's own graph transformations."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from headrace.runtime.naming import value_names, walk
from headrace.runtime.provenance import stamp

_SIGNALS = {"DFT": (0,), "STFT": (0, 2)}
"""Inputs that hold the signal, or the window that it is multiplied with."""


def transform_in_float64(model: ir.Model) -> bool:
    """Computes Fourier transforms of float32 in float64.

    The backend's kernels of float32 leave 6e-7 of the largest output where a frequency is not there
    at all (6e-6 for frames of 400); those of float64 give what rounds to the right float32, and are
    no slower: 16,000 samples in frames of 400 took 4.6 ms against 8.4, of 512 0.9 against 1.1.
    """
    nodes = [node for node in walk(model.graph) if _is_single(node)]
    names = value_names(model)

    def cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
        name = names.fresh(f"{value.name}/{dtype.name.lower()}")
        output = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
        return ir.node("Cast", [value], {"to": dtype.value}, outputs=[output], name=name)

    for node in nodes:
        graph, result = node.graph, node.outputs[0]
        assert graph is not None
        for at in _SIGNALS[node.op_type]:
            value = node.inputs[at] if at < len(node.inputs) else None
            if value is not None:
                wide = cast(value, ir.DataType.DOUBLE)
                graph.insert_before(node, wide)
                node.replace_input_with(at, wide.outputs[0])
        narrow = cast(result, ir.DataType.FLOAT)
        result.replace_all_uses_with(narrow.outputs[0], replace_graph_outputs=True)
        narrow.replace_input_with(0, result)
        result.type = ir.TensorType(ir.DataType.DOUBLE)
        graph.insert_after(node, narrow)
    return bool(nodes)


def _is_single(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in _SIGNALS:
        return False
    signal = node.inputs[0]
    return signal is not None and signal.dtype == ir.DataType.FLOAT


def guard(model: ir.Model) -> None:
    """Has a run fail where an empty tensor would end the process, or keep a thread for good.

    Such a tensor goes through a Reshape to the shape that it has: a size that is to be found from
    the others cannot be if one of them is 0, and then the Reshape fails.
    """
    nodes = [(node, value) for node in walk(model.graph) if (value := _guarded(node)) is not None]
    names = value_names(model)
    for node, value in nodes:
        graph, shape = node.graph, value.shape
        assert graph is not None
        at, found = _GUARDS[node.op_type]
        rank = shape.rank() if shape is not None else _RECURRENT_RANK
        sizes = [0] * rank  # which leaves them as they are
        sizes[found] = -1
        name = names.fresh(f"{value.name}/not-empty")
        constant = ir.node(
            "Constant",
            [],
            {"value": ir.tensor(sizes, ir.DataType.INT64)},
            outputs=[ir.Value(name=f"{name}/shape")],
            name=f"{name}/shape",
        )
        output = ir.Value(name=name, type=value.type, shape=shape)
        reshape = ir.node("Reshape", [value, constant.outputs[0]], outputs=[output], name=name)
        for each in (constant, reshape):
            stamp(each, ())  # it stands for no layer of the network's
        graph.insert_before(node, [constant, reshape])
        node.replace_input_with(at, output)


def guards_within_functions(model: ir.Model) -> bool:
    """Whether functions have layers to guard, for which they must be inlined: of their values no
    shape is known."""
    return any(
        node.op_type in _GUARDS and node.domain in ("", "ai.onnx")
        for function in model.functions.values()
        for node in function.all_nodes()
    )


_GUARDS: Final = {
    "Attention": (1, 2),  # without heads, a division by zero
    "Conv": (1, 0),  # without channels, no end
    "ConvTranspose": (0, 0),  # without an extent, a crash
    "GRU": (0, 2),  # without a batch or a sequence, an exception in a thread
    "LSTM": (0, 0),  # without a batch, the same
}
"""The input, and the one of its sizes that may be 0, for it can be found from the others."""
_RECURRENT: Final = ("GRU", "LSTM")
_RECURRENT_RANK: Final = 3


def _guarded(node: ir.Node) -> ir.Value | None:
    """The node's value that must not be empty, if that is not known before a run."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _GUARDS:
        return None
    value = node.inputs[_GUARDS[node.op_type][0]]
    if value is None:
        return None
    shape = value.shape
    if shape is None:  # of others `limits` refuses it
        return value if node.op_type in _RECURRENT else None
    if node.op_type == "Attention" and shape.rank() != 4:  # its attributes tell of the heads
        return None
    found = _GUARDS[node.op_type][1]
    sizes = [size for axis, size in enumerate(shape) if axis != found]
    return None if all(isinstance(size, int) and size for size in sizes) else value


TRANSFORMATIONS = (transform_in_float64,)
