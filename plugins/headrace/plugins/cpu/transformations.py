"""The device's own graph transformations."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.proven_shapes import constant
from headrace.plugins.cpu.saturation import multiply_exactly
from headrace.runtime.intake.naming import value_names, walk

_ARGS = ("ArgMax", "ArgMin")
_WIDE = "/double"  # ends the name of a cast to float64 that is ours
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


def notes_on_float64(model: ir.Model) -> tuple[str, ...]:
    """What to say of a network that `transform_in_float64` changed: its results differ from those
    of ONNX Runtime by itself, and widely where they pass through a phase or a rounding."""
    wide = [node for node in walk(model.graph) if _is_widened(node)]
    if not wide:
        return ()
    return (
        f"{len(wide)} Fourier transform(s) of float32 are computed in float64, which is more exact "
        "than ONNX Runtime by itself; DISABLE_TRANSFORMATIONS=YES leaves them as they are",
    )


def _is_widened(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in _SIGNALS:
        return False
    signal = node.inputs[0]
    cast = signal.producer() if signal is not None else None
    return cast is not None and cast.op_type == "Cast" and (cast.name or "").endswith(_WIDE)


def _is_single(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in _SIGNALS:
        return False
    signal = node.inputs[0]
    return signal is not None and signal.dtype == ir.DataType.FLOAT


def count_axes_from_the_first(model: ir.Model) -> bool:
    """Gives reductions no negative axes: of an input without elements the backend keeps the sizes
    of these. Does so where an axis may be empty and how many there are is known."""
    nodes = [node for node in walk(model.graph) if _is_reduction(node)]
    names = value_names(model)
    changed = False
    for node in nodes:
        data = node.inputs[0]
        if data is None or data.shape is None or all(isinstance(n, int) and n for n in data.shape):
            continue
        rank = data.shape.rank()
        changed = _count_in_attribute(node, rank) or changed
        given = node.inputs[1] if len(node.inputs) > 1 else None
        tensor = constant(given) if given is not None else None
        if tensor is not None and (tensor.numpy() < 0).any():
            axes = np.where(tensor.numpy() < 0, tensor.numpy() + rank, tensor.numpy())
            name = names.fresh(f"{node.name}/axes")
            value = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(axes.shape)
            )
            made = ir.node("Constant", [], {"value": ir.tensor(axes)}, outputs=[value], name=name)
            assert node.graph is not None
            node.graph.insert_before(node, made)
            node.replace_input_with(1, value)
            changed = True
    return changed


def _count_in_attribute(node: ir.Node, rank: int) -> bool:
    if node.op_type in _ARGS and node.attributes.get_int("axis", 0) < 0:
        node.attributes["axis"] = ir.AttrInt64("axis", node.attributes.get_int("axis", 0) + rank)
        return True
    axes = node.attributes.get_ints("axes", ())
    if not any(axis < 0 for axis in axes):
        return False
    counted = [axis + rank if axis < 0 else axis for axis in axes]
    node.attributes["axes"] = ir.AttrInt64s("axes", counted)
    return True


def _is_reduction(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    return node.op_type.startswith("Reduce") or node.op_type in _ARGS


TRANSFORMATIONS = (count_axes_from_the_first, transform_in_float64, multiply_exactly)
