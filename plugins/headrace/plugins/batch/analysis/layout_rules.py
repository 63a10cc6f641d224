"""Rules for operators that only move, cut or repeat values: the axis of the batch in the result."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.plugins.batch.analysis.axes import Doubt, Layer, Mixes, Rule, apart, moved


def _reshape(layer: Layer) -> list[int]:
    layer.only_first()
    if layer.node.op_type == "Flatten" and layer.integer("axis", 1) == 0:
        raise Mixes("it flattens the batch")
    return [moved(layer.shape(), layer.axis, layer.result())]


def _transpose(layer: Layer) -> list[int]:
    order = layer.node.attributes.get("perm")
    rank = len(layer.shape())
    order_of = list(order.as_ints()) if order is not None else list(reversed(range(rank)))
    return [order_of.index(layer.axis)]


def _concat(layer: Layer) -> list[int]:
    axis = layer.integer("axis", 0) % len(layer.shape())
    if None in layer.axes:
        raise Mixes("it joins the batch with a constant")
    (where, *others) = set(layer.axes)
    if others:
        raise Mixes("its inputs have the batch on different axes")
    if where == axis:
        raise Mixes("it concatenates along the batch")
    assert where is not None
    return [where]


def _slice(layer: Layer) -> list[int]:
    layer.only_first()
    axes = layer.constant(3, "axes")
    if axes is None:
        starts = layer.constant(1, "starts")
        axes = list(range(len(starts or ())))
    apart(layer, axes, "it cuts out")
    return [layer.axis]


def _gather(layer: Layer) -> list[int]:
    data, indices = layer.axes[0], layer.axes[1]
    axis = layer.integer("axis", 0) % len(layer.shape())
    if data is None:
        assert indices is not None
        return [axis + indices]
    if indices is not None:
        raise Mixes("it picks from the batch what the batch says")
    if axis == data:
        raise Mixes("it picks single rows of the batch")
    return [data + (len(layer.shape(1)) - 1 if data > axis else 0)]


def _gather_elements(layer: Layer) -> list[int]:
    axis = layer.integer("axis", 0) % len(layer.shape())
    if layer.axes[0] != layer.axes[1]:
        raise Doubt("only one of data and indices has the batch")
    if axis == layer.axis:
        raise Mixes("it gathers along the batch")
    return [layer.axis]


def _squeeze(layer: Layer) -> list[int]:
    layer.only_first()
    axes = layer.constant(1, "axes")
    if not axes:
        raise Doubt("it drops every axis of size 1, which a batch of one row is too")
    rank = len(layer.shape())
    apart(layer, axes, "it drops an axis")
    return [layer.axis - sum(axis % rank < layer.axis for axis in axes)]


def _unsqueeze(layer: Layer) -> list[int]:
    layer.only_first()
    axes = layer.constant(1, "axes") or []
    rank = len(layer.shape()) + len(axes)
    added = {axis % rank for axis in axes}
    return [[axis for axis in range(rank) if axis not in added][layer.axis]]


def _expand(layer: Layer) -> list[int]:
    layer.only_first()
    return [layer.axis + len(layer.result()) - len(layer.shape())]


def _pad(layer: Layer) -> list[int]:
    pads = layer.constant(1, "pads") or []
    if layer.constant(3) is not None:
        raise Doubt("its axes are chosen")
    rank = len(layer.shape())
    if pads[layer.axis] or pads[layer.axis + rank]:
        raise Mixes("it adds rows")
    return [layer.axis]


def _tile(layer: Layer) -> list[int]:
    repeats = layer.constant(1) or []
    if repeats[layer.axis] != 1:
        raise Mixes("it repeats the batch")
    return [layer.axis]


LAYOUT_RULES: Mapping[str, Rule] = {
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "Pad": _pad,
    "Tile": _tile,
}
"""The rules by operator of ONNX's own domain."""
