"""Conditions on images and the windows that convolutions move over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.guards.terms import (
    Condition,
    is_known,
    is_shape,
    is_source,
    sizes_along,
)
from headrace.plugins.openvino.library import openvino, operations

_SMALL: Final = "gets an image that is smaller than its window"
_ADDING: Final = ("Add", "Subtract")
_APART: Final = ("AvgPool", "Convolution", "GroupConvolution", "MatMul", "MaxPool")
"""Operations whose results no kernel of a convolution makes."""
_SAME: Final = ("same_upper", "same_lower")
"""With these pads every image is large enough."""


def _window(operation: openvino.Node) -> Iterator[Condition]:
    """If the window is one element longer than the padded image and moves by one element, the
    kernel returns no elements, but OpenVINO's inference of shapes refuses it. So a request would be
    answered or refused, depending on what came before it. The kernel refuses shorter images and
    other strides itself, and takes no window of unknown size."""
    attributes = operation.get_attributes()
    data, weights = operation.input_values()[:2]
    rank = data.get_partial_shape().rank
    if attributes["auto_pad"] in _SAME or rank.is_dynamic:
        return
    pads = np.add(attributes["pads_begin"], attributes["pads_end"])
    for at, pad in enumerate(pads, -len(pads)):
        if attributes["strides"][at] > 1 or is_known(data, at) or not is_known(weights, at):
            continue
        others = weights.get_partial_shape()[at].get_length() - 1
        missing = attributes["dilations"][at] * others - pad
        if missing > 0:
            size = sizes_along(data, [at + rank.get_length()])
            yield operations.subtract(size, np.int64(missing)), _SMALL


def sums_apart(model: openvino.Model) -> dict[str, list[Condition]]:
    """Conditions that always hold, by the names of convolutions. The compiler has a convolution add
    a tensor to its result in place. Such a kernel does not run without elements, and if one of both
    is repeated, the sum keeps the shape and the memory of an earlier run. So a sum of tensors that
    may have different sizes gets a second reader of an operand, which keeps it apart."""
    convolutions = [each for each in model.get_ops() if each.get_type_name() in WINDOWS]
    following = _following_values(model) if convolutions else set()
    sums = {
        each.get_name(): found for each in convolutions if (found := [*_operands(each, following)])
    }
    if not sums:
        return {}
    with _symbols(model):
        unlike = {
            name: [each for each in found if not _are_alike(*each)] for name, found in sums.items()
        }
    return {
        name: [
            (operations.add(sizes_along(each, []), np.int64(1)), "adds")
            for operands in values
            for each in operands
            if each.get_partial_shape().is_dynamic
        ]
        for name, values in unlike.items()
    }


def _following_values(model: openvino.Model) -> set[str]:
    """The names of the operations whose results depend on a request's values, not on its shapes
    alone. Others are constants, such as a bias that is reshaped to the rank of its convolution."""
    found: set[str] = set()
    for each in model.get_ordered_ops():
        made = (value.get_node().get_name() for value in each.input_values())
        if is_source(each) or (not is_shape(each) and not found.isdisjoint(made)):
            found.add(each.get_name())
    return found


def _operands(
    convolution: openvino.Node, following: set[str]
) -> Iterator[tuple[openvino.Output, openvino.Output]]:
    """The convolution's result, or what other layers make of it, and what is added to it or
    subtracted."""
    waiting, seen = [convolution.output(0)], set[str]()
    while waiting:
        value = waiting.pop()
        for reader in (port.get_node() for port in value.get_target_inputs()):
            name, kind = reader.get_name(), reader.get_type_name()
            if name in seen or kind in _APART:
                continue
            seen.add(name)
            others = [each for each in reader.input_values() if each != value]
            free = [each for each in others if each.get_node().get_name() in following]
            if not free or kind == "Concat":  # of the parts of a Split
                waiting += reader.outputs()
            elif kind in _ADDING:
                yield value, free[0]


@contextmanager
def _symbols(model: openvino.Model) -> Iterator[None]:
    """Gives each unknown size of an input a symbol. OpenVINO's inference of shapes passes symbols
    on, and sizes with the same symbol are always the same. The compiler, however, drops conditions
    on them, so they go again."""
    free = [each for each in model.get_parameters() if each.get_partial_shape().rank.is_static]
    for with_symbols in (True, False):
        for parameter in free:
            sizes = [*parameter.get_partial_shape()]
            parameter.set_partial_shape(
                openvino.PartialShape([_size(each, symbol=with_symbols) for each in sizes])
            )
        model.validate_nodes_and_infer_types()
        if with_symbols:
            yield


def _size(size: openvino.Dimension, *, symbol: bool) -> openvino.Dimension:
    made = openvino.Dimension(size.min_length, size.max_length)
    if symbol and size.is_dynamic:
        made.set_symbol(openvino.Symbol())
    return made


def _are_alike(one: openvino.Output, other: openvino.Output) -> bool:
    """Whether the sizes of both are always the same."""
    shapes = one.get_partial_shape(), other.get_partial_shape()
    if any(shape.rank.is_dynamic for shape in shapes) or len(shapes[0]) != len(shapes[1]):
        return False
    return all(
        size == same
        and (size.is_static or (size.has_symbol() and size.get_symbol() == same.get_symbol()))
        for size, same in zip(*shapes, strict=True)
    )


WINDOWS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {"Convolution": _window, "GroupConvolution": _window}
)
