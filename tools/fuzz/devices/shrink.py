"""The smallest network and request that fail in the same way, found step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

from tools.fuzz.devices.values import resized
from tools.fuzz.devices.variant import Feed, Variant, inferred

_MOST_VALUES = 12


def shrunk(
    variant: Variant, fails: Callable[[Variant], bool], budget: Callable[[], bool]
) -> Variant:
    """The variant after all simplifications that keep it failing.

    Args:
        fails: whether a simpler variant fails in the same way.
        budget: whether another one may be tried.
    """
    found = True
    while found:
        found = False
        for simpler in simplifications(variant):
            if not budget():
                return variant
            if fails(simpler):
                variant, found = simpler, True
                break
    return variant


def simplifications(variant: Variant) -> Iterator[Variant]:
    """Variants that are a little simpler, those that save most first. None is as complex as the
    variant itself, so that shrinking ends."""
    if len(variant.feeds) > 1:
        for feed in variant.feeds:
            yield replace(variant, feeds=(feed,))
        half = len(variant.feeds) // 2
        if half > 1:
            yield replace(variant, feeds=variant.feeds[:half])
            yield replace(variant, feeds=variant.feeds[half:])
        for at in range(len(variant.feeds)):
            yield replace(variant, feeds=(*variant.feeds[:at], *variant.feeds[at + 1 :]))
        return
    yield from _fewer_nodes(variant)
    yield from _fewer_outputs(variant)
    if not variant.feeds:
        return
    yield from _fewer_attributes(variant)
    yield from _smaller_sizes(variant)
    yield from _simpler_values(variant)


def _with_model(variant: Variant, model: onnx.ModelProto, feed: Feed | None = None) -> Variant:
    given = variant.feeds if feed is None else (feed,)
    return replace(variant, model=model.SerializeToString(), feeds=given)


def _fewer_nodes(variant: Variant) -> Iterator[Variant]:
    """The network up to one of its nodes."""
    nodes = len(variant.proto.graph.node)
    if nodes < 2:
        return
    try:
        graph = inferred(variant.proto).graph
    except Exception:  # noqa: BLE001 - errors of many kinds are raised
        return
    known = {value.name: value for value in graph.value_info}
    for index in sorted({nodes // 4, nodes // 2, nodes - 2} - {nodes - 1}):
        model = variant.proto
        output = model.graph.node[index].output[0]
        if output not in known or not known[output].type.HasField("tensor_type"):
            continue
        del model.graph.node[index + 1 :]
        del model.graph.output[:]
        element = known[output].type.tensor_type.elem_type
        model.graph.output.append(helper.make_tensor_value_info(output, element, None))
        yield _with_model(variant, model, _used(model, variant.feeds[0]))


def _fewer_outputs(variant: Variant) -> Iterator[Variant]:
    graph = variant.proto.graph
    for index in range(1, len(graph.output)):
        model = variant.proto
        del model.graph.output[index]
        yield _with_model(variant, model)


def _used(model: onnx.ModelProto, feed: Feed) -> Feed:
    """The feed without inputs that no node reads, which the network loses."""
    graph = model.graph
    read = {name for node in graph.node for name in node.input}
    if any(attribute.g.node for node in graph.node for attribute in node.attribute):
        return feed  # a body may read it
    for port in [port for port in graph.input if port.name not in read]:
        graph.input.remove(port)
    return {name: value for name, value in feed.items() if name in read}


def _fewer_attributes(variant: Variant) -> Iterator[Variant]:
    for at, node in enumerate(variant.proto.graph.node):
        for index, attribute in enumerate(node.attribute):
            if attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.TENSOR):
                model = variant.proto
                del model.graph.node[at].attribute[index]
                yield _with_model(variant, model)


def _smaller_sizes(variant: Variant) -> Iterator[Variant]:
    (feed,) = variant.feeds
    model = variant.proto
    arrays = {name: value for name, value in feed.items() if isinstance(value, np.ndarray)}
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    everything = {**arrays, **constants}
    sizes = sorted({size for each in everything.values() for size in each.shape}, reverse=True)
    for old in sizes:
        for new in sorted({1, 2, old // 2} & {*range(1, old)}):
            shapes = {
                name: tuple(new if size == old else size for size in each.shape)
                for name, each in everything.items()
            }
            yield _reshaped(variant, everything, shapes)
    for name, each in everything.items():
        for axis, size in enumerate(each.shape):
            if size > 1:
                shape = (*each.shape[:axis], 1, *each.shape[axis + 1 :])
                yield _reshaped(variant, everything, {name: shape})


def _reshaped(
    variant: Variant, arrays: dict[str, np.ndarray[Any, Any]], shapes: dict[str, tuple[int, ...]]
) -> Variant:
    model = variant.proto
    feed = dict(variant.feeds[0])
    for name, shape in shapes.items():
        if name in feed:
            feed[name] = resized(arrays[name], shape)
    for tensor in model.graph.initializer:
        if tensor.name in shapes:
            smaller = resized(arrays[tensor.name], shapes[tensor.name])
            tensor.CopyFrom(onnx.numpy_helper.from_array(smaller, tensor.name))
    for port in model.graph.input:
        for axis, dimension in enumerate(port.type.tensor_type.shape.dim):
            if dimension.HasField("dim_value") and port.name in shapes:
                dimension.dim_value = shapes[port.name][axis]
    return _with_model(variant, model, feed)


def _simpler_values(variant: Variant) -> Iterator[Variant]:
    (feed,) = variant.feeds
    for name, value in feed.items():
        if not isinstance(value, np.ndarray) or value.dtype == object or not value.size:
            continue
        plain = [np.zeros_like(value), np.ones_like(value)]
        flat = value.astype(object).ravel()
        for at in range(min(value.size, _MOST_VALUES)) if value.size > 1 else ():
            if flat[at] != 0:
                changed = value.copy()
                changed.ravel()[at] = 0
                plain.append(changed)
        for each in plain:
            if _complexity(each) < _complexity(value):
                yield replace(variant, feeds=({**feed, name: each},))


def _complexity(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """How many elements are not 0, and how many of them not 1."""
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64) if array.dtype.kind != "c" else np.abs(array)
    return int(np.count_nonzero(wide != 0)), int(np.count_nonzero((wide != 0) & (wide != 1)))
