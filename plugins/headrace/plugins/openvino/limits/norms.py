"""Normalisations that OpenVINO computes differently from ONNX. `limits` has the other layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import input_of, sizes_of


def _layer_normalization(node: ir.Node, _: int) -> str | None:
    """No case has a scale or a bias of another rank than the number of axes that are normalised.
    ONNX repeats such a tensor along axes."""
    data, axis = sizes_of(input_of(node, 0)), node.attributes.get_int("axis", -1)
    if axis >= 0 and data is None:
        return None
    count = -axis if axis < 0 else len(data or ()) - axis
    given = (sizes_of(input_of(node, at)) for at in (1, 2))
    if any(sizes is not None and len(sizes) != count for sizes in given):
        return "OpenVINO reshapes a scale or bias whose rank is not the number of normalised axes"
    return None


def _lrn(node: ir.Node, _: int) -> str | None:
    """No case has an even size, or a bias with a fraction. For an even size, ONNX's window has one
    more channel after its centre than before it."""
    if node.attributes.get_int("size", 1) % 2 == 0:
        return "OpenVINO's window of an even size starts one channel before ONNX's"
    if not node.attributes.get_float("bias", 1.0).is_integer():
        return "OpenVINO drops the fraction of the bias"
    return None


def _lp_normalization(node: ir.Node, _: int) -> str | None:
    """No case has another norm than the two that ONNX defines."""
    if node.attributes.get_int("p", 2) not in (1, 2):
        return "p must be 1 or 2"
    return None


def _mean_variance(node: ir.Node, _: int) -> str | None:
    """No case has an empty list of axes, which means all axes."""
    if "axes" in node.attributes and not node.attributes.get_ints("axes", []):
        return "OpenVINO takes an empty list of axes for no axes"
    return None


NORMS: Final[Mapping[str, Callable[[ir.Node, int], str | None]]] = MappingProxyType(
    {
        "LRN": _lrn,
        "LayerNormalization": _layer_normalization,
        "LpNormalization": _lp_normalization,
        "MeanVarianceNormalization": _mean_variance,
    }
)
