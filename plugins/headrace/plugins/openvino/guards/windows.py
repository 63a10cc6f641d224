"""Conditions on images and the windows that convolutions move over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.guards.terms import Condition, is_known, sizes_along
from headrace.plugins.openvino.library import openvino, operations

_SMALL: Final = "gets an image that is smaller than its window"
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


WINDOWS: Final[Mapping[str, Callable[[openvino.Node], Iterator[Condition]]]] = MappingProxyType(
    {"Convolution": _window, "GroupConvolution": _window}
)
