"""Layers over sequences that OpenVINO accepts but computes differently. `limits` has the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import input_of


def _lstm(node: ir.Node, version: int) -> str | None:
    """test_lstm_with_peepholes."""
    if input_of(node, 7) is not None:
        return "OpenVINO ignores peepholes"
    return _recurrent(node, version)


def _recurrent(node: ir.Node, _: int) -> str | None:
    """test_gru_batchwise, test_lstm_batchwise, test_simple_rnn_batchwise. No case has a clip."""
    if node.attributes.get_int("layout", 0):
        return "OpenVINO ignores layout=1"
    if node.attributes.get_float("clip", 1.0) < 0:
        return "OpenVINO clips by the absolute value of a negative clip, which ONNX does not define"
    return None


SEQUENCES: Final[Mapping[str, Callable[[ir.Node, int], str | None]]] = MappingProxyType(
    {"GRU": _recurrent, "LSTM": _lstm, "RNN": _recurrent}
)
