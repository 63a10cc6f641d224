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


def has_wide_mask(node: ir.Node) -> bool:
    """Whether an Attention's mask is known to be wider than its keys. `guards` finds it if a width
    is not known before a run. No case has such a mask."""
    key, mask, past = (sizes_of(input_of(node, at)) for at in (1, 3, 4))
    keys = [each[-2] for each in (key, past) if each is not None and len(each) > 1]
    width = mask[-1] if mask else None
    known = [each for each in keys if each is not None]
    complete = len(known) == 1 + (input_of(node, 4) is not None)
    return complete and width is not None and width > sum(known)


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
