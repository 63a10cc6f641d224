"""Operators that look at places and windows, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_conv_transpose import ConvTranspose as OpConvTranspose


class GatherElements(OpRun):
    """Gathers from axes of any size. Other axes may have fewer indices than elements.

    https://onnx.ai/onnx/operators/onnx__GatherElements.html
    """

    def _run(self, data: Any, indices: Any, axis: int = 0) -> tuple[Any, ...]:
        axis = range(data.ndim)[axis]
        size = data.shape[axis]
        if ((indices < -size) | (indices >= size)).any():
            raise IndexError(f"an index is out of bounds for an axis of {size} elements")
        kept = [slice(None) if at == axis else slice(n) for at, n in enumerate(indices.shape)]
        return (np.take_along_axis(data[tuple(kept)], indices, axis),)


class GlobalMaxPool(OpRun):
    """The maximum over all spatial axes. There may be any number of them."""

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class ConvTranspose(OpConvTranspose):
    """Computes each group by its own channels, weights and biases.

    https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
    """

    def _run(  # type: ignore[override]
        self, x: Any, w: Any, b: Any = None, group: int = 1, **options: Any
    ) -> tuple[Any, ...]:
        of_group = super()._run
        groups = zip(np.split(x, group, axis=1), np.split(w, group), strict=True)
        parts = [of_group(*each, group=1, **options)[0] for each in groups]  # type: ignore[no-untyped-call]
        result = np.concatenate(parts, axis=1)
        if b is not None:
            result = result + b.reshape(-1, *[1] * (x.ndim - 2))
        return (result.astype(x.dtype),)


class Pad(OpRun):
    """Pads a tensor. Negative pads cut elements off before anything is added. They may cut off more
    than an axis has if constants fill it up to a size that is not negative, as in ONNX's rule for
    the shape of the output.

    https://onnx.ai/onnx/operators/onnx__Pad.html
    """

    def _run(
        self,
        x: Any,
        pads: Any = None,
        constant_value: Any = None,
        axes: Any = None,
        mode: str = "constant",
        paddings: Any = None,  # before operator set 2
        value: float = 0.0,  # before operator set 11
    ) -> tuple[Any, ...]:
        given = np.asarray(paddings if pads is None else pads).reshape(2, -1)
        padded = range(x.ndim) if axes is None else [range(x.ndim)[axis] for axis in axes]
        if given.shape[1] != len(padded):
            raise ValueError(f"{given.size} pads do not fit {len(padded)} axes")
        kept: list[Any] = [slice(None)] * x.ndim
        sides = [(0, 0)] * x.ndim
        for axis, (before, after) in zip(padded, given.T.tolist(), strict=True):
            size = x.shape[axis]
            start, end = max(-before, 0), size - max(-after, 0)
            lacking = max(start - end, 0)
            if size + before + after < 0 or (lacking and mode != "constant"):
                raise ValueError(f"pads {before} and {after} remove more than the {size} elements")
            kept[axis] = slice(start, max(start, end))
            sides[axis] = (max(before, 0), max(after, 0))
            if lacking:
                sides[axis] = (0, size + before + after)
        fill: Any = value if constant_value is None else np.asarray(constant_value).reshape(-1)[0]
        if x.dtype == object and constant_value is None:
            fill = ""
        options: dict[str, Any] = {"constant_values": fill} if mode == "constant" else {}
        how: Any = mode
        return (np.pad(x[tuple(kept)], sides, how, **options).astype(x.dtype),)


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
        frames = sliding_window_view(values, length, axis=1)[:, ::step]
        spectrum = np.fft.fft(frames if window is None else frames * window)
        if onesided:
            spectrum = spectrum[..., : length // 2 + 1]
        return (np.stack((spectrum.real, spectrum.imag), axis=-1).astype(signal.dtype),)


class AveragePool(OpRun):
    """https://onnx.ai/onnx/operators/onnx__AveragePool.html"""

    def _run(self, x: Any, count_include_pad: int = 0, **options: Any) -> tuple[Any, ...]:
        sides, steps = _edges(x.shape[2:], options, bool(count_include_pad))
        counts = _windows(np.ones(x.shape[2:]), sides, steps, options, count_include_pad)
        axes = tuple(range(2 - x.ndim, 0))
        sums = _windows(x, sides, steps, options, 0).sum(axes)
        return ((sums / counts.sum(axes)).astype(x.dtype),)


class LpPool(OpRun):
    """https://onnx.ai/onnx/operators/onnx__LpPool.html"""

    def _run(self, x: Any, p: int = 2, **options: Any) -> tuple[Any, ...]:
        sides, steps = _edges(x.shape[2:], options)
        powers = _windows(np.abs(x) ** p, sides, steps, options, 0)
        return ((powers.sum(tuple(range(2 - x.ndim, 0))) ** (1 / p)).astype(x.dtype),)


class MaxPool(OpRun):
    """https://onnx.ai/onnx/operators/onnx__MaxPool.html"""

    def _run(self, x: Any, storage_order: int = 0, **options: Any) -> tuple[Any, ...]:
        sides, steps = _edges(x.shape[2:], options)
        least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        windows = _windows(x, sides, steps, options, least)
        most = windows.max(tuple(range(2 - x.ndim, 0)))
        if len(self.output) < 2:
            return (most,)
        image = np.arange(prod(x.shape[2:]))
        image = image.reshape(x.shape[2:], order="F" if storage_order else "C")
        places = _windows(image, sides, steps, options, -1).reshape(*steps, -1)
        is_most = windows.reshape(*most.shape, -1) == most[..., np.newaxis]
        first = (is_most & (places >= 0)).argmax(-1)[..., np.newaxis]
        found = np.take_along_axis(np.broadcast_to(places, is_most.shape), first, -1)[..., 0]
        images = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(steps))
        return most, found + images * image.size


def _windows(
    x: Any,
    sides: Sequence[tuple[int, int, int]],
    steps: Sequence[int],
    options: dict[str, Any],
    pad: Any,
) -> Any:
    """The windows of an image, with axes for their places and then for their elements.

    Args:
        x: an array whose last axes are those of the image.
        pad: what its pads are; what the last windows lack beyond them is that or 0 at most.
    """
    before = [(0, 0)] * (x.ndim - len(sides))
    fill = np.asarray(pad, x.dtype)
    beyond = np.minimum(fill, np.asarray(0, x.dtype))
    x = np.pad(x, [*before, *((start, end) for start, end, _ in sides)], constant_values=fill)
    x = np.pad(x, [*before, *((0, more) for *_, more in sides)], constant_values=beyond)
    strides, dilations = _steps_of(options)
    extents = [
        (size - 1) * gap + 1 for size, gap in zip(options["kernel_shape"], dilations, strict=True)
    ]
    views = sliding_window_view(x, extents, tuple(range(-len(sides), 0)))
    places = (
        slice(0, (count - 1) * stride + 1, stride) if count else slice(0)
        for count, stride in zip(steps, strides, strict=True)
    )
    return views[(..., *places, *(slice(None, None, gap) for gap in dilations))]


def _steps_of(options: dict[str, Any]) -> tuple[Sequence[int], Sequence[int]]:
    ones = [1] * len(options["kernel_shape"])
    return options.get("strides") or ones, options.get("dilations") or ones


def _edges(
    sizes: Sequence[int], options: dict[str, Any], counts_pads: bool = False
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """The pads before and after an image on each axis, with what its last window needs beyond, and
    the number of windows.

    A window may be larger than the padded image by less than a stride, if it has no gaps and counts
    no pads. Then there is one, as in ONNX's shape inference.

    Raises:
        ValueError: a window does not fit.
    """
    strides, dilations = _steps_of(options)
    kernel, count = options["kernel_shape"], len(sizes)
    kind = options.get("auto_pad") or "NOTSET"
    pads = (options.get("pads") if kind == "NOTSET" else None) or [0] * 2 * count
    sides, steps = [], []
    for at, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        extent = (kernel[at] - 1) * dilations[at] + 1
        before, after = pads[at], pads[at + count]
        if kind.startswith("SAME"):
            windows = -(-size // stride)
            pad = max(0, (windows - 1) * stride + extent - size)
            before = pad // 2 if kind == "SAME_UPPER" else pad - pad // 2
            after = pad - before
        else:
            room = size + before + after - extent
            is_cut = {*dilations} == {1} and not counts_pads and size > 0
            if room < 0 and not options.get("ceil_mode") and (not is_cut or room <= -stride):
                raise ValueError(
                    f"a window of {extent} does not fit into {extent + room} elements "
                    f"of axis {at + 2}"
                )
            windows = (
                -(-room // stride) if options.get("ceil_mode") else max(0, room) // stride
            ) + 1
            if options.get("ceil_mode") and (windows - 1) * stride >= size + before:
                windows -= 1  # the last one would be in the pads alone
        more = max(0, (windows - 1) * stride + extent - size - before - after)
        sides.append((before, after, more))
        steps.append(max(0, windows))
    return sides, steps
