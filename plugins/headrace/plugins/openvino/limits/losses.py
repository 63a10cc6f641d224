"""Losses that OpenVINO accepts with tensors that do not fit. `limits` has the other layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import input_of, sizes_of


def _loss(node: ir.Node, _: int) -> str | None:
    """No case has another number of weights than of classes, or a target of other sizes than the
    scores. The backend compares the sizes of targets in a run."""
    scores, target, weights = (sizes_of(input_of(node, at)) for at in range(3))
    if scores is not None and len(scores) < 2:
        return "OpenVINO takes scores without an axis of classes"
    if scores is not None and target is not None and len(target) != len(scores) - 1:
        return f"the target has {len(target)} axes; it must have {len(scores) - 1}"
    known = scores is not None and scores[1] is not None and weights == [scores[1]]
    if input_of(node, 2) is not None and not known:
        return "OpenVINO takes another number of weights than of classes"
    return None


LOSSES: Final[Mapping[str, Callable[[ir.Node, int], str | None]]] = MappingProxyType(
    {"NegativeLogLikelihoodLoss": _loss, "SoftmaxCrossEntropyLoss": _loss}
)
