"""Attention and STFT, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_attention import Attention_24, Attention_25

from headrace.runtime.network.reference.norms import opset_of


class Attention(OpRun):
    """Broadcasts a mask before operator set 24. Since then, a short mask is continued. Does not cap
    the products of queries and keys that mode 0 returns."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        opset = opset_of(self)
        self._broadcasts = opset < 24
        made = Attention_25 if opset >= 25 else Attention_24
        self._wrapped: Any = made(*arguments)

    def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
        query, key, value, *rest = inputs
        mask = rest[0] if rest else None
        if self._broadcasts and mask is not None:
            past = rest[1] if len(rest) > 1 else None
            keys = key.shape[-2] + (0 if past is None else past.shape[2])
            rest[0] = np.broadcast_to(mask, (*mask.shape[:-1], keys))
        results: tuple[Any, ...] = self._wrapped._run(query, key, value, *rest, **options)
        if options.get("softcap") and not options.get("qk_matmul_output_mode"):
            options["softcap"] = 0.0
            products = self._wrapped._run(query, key, value, *rest, **options)[-1]
            return *results[:-1], products
        return results


class STFT(OpRun):
    """Multiplies each frame of the signal by the window, and transforms it.

    https://onnx.ai/onnx/operators/onnx__STFT.html
    """

    def _run(
        self,
        signal: Any,
        frame_step: Any,
        window: Any = None,
        frame_length: Any = None,
        onesided: int = 1,
    ) -> tuple[Any, ...]:
        if signal.ndim == 2:  # not in the specification, but exporters write it
            signal = signal[..., np.newaxis]
        step, length = np.asarray(frame_step).item(), signal.shape[1]
        if frame_length is not None:
            length = np.asarray(frame_length).item()
        elif window is not None:
            length = len(window)
        if step < 1 or length < 1 or length > signal.shape[1]:
            raise ValueError(
                f"frames of {length} every {step} do not fit a signal of {signal.shape[1]}"
            )
        if window is not None and len(window) != length:
            raise ValueError(f"the window has {len(window)} elements, a frame has {length}")
        wide = signal.astype(np.float64)
        values = wide[..., 0] if wide.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
        frames = np.lib.stride_tricks.sliding_window_view(values, length, axis=1)[:, ::step]
        spectrum = np.fft.fft(frames if window is None else frames * window)
        if onesided:
            spectrum = spectrum[..., : length // 2 + 1]
        return (np.stack((spectrum.real, spectrum.imag), axis=-1).astype(signal.dtype),)
