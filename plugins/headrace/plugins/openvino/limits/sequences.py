"""Layers over sequences that OpenVINO accepts but computes differently. `limits` has the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import input_of, sizes_of


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


def _frames(node: ir.Node, _: int) -> str | None:
    """No case has a window of unknown length, and none has neither a window nor a length. If the
    window's length is known, OpenVINO compares it with the length of a frame."""
    window = input_of(node, 2)
    if window is not None and None in (sizes_of(window) or [None]):
        return "OpenVINO takes the step, or repeats the window, if the window's length is not known"
    if window is None and input_of(node, 3) is None:
        return "OpenVINO takes the step for the length of frames, because the layer gives none"
    return None


SEQUENCES: Final[Mapping[str, Callable[[ir.Node, int], str | None]]] = MappingProxyType(
    {"GRU": _recurrent, "LSTM": _lstm, "RNN": _recurrent, "STFT": _frames}
)
