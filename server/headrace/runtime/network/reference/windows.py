"""Operators that look at windows and edges, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_average_pool import AveragePool_19
from onnx.reference.ops.op_conv_transpose import ConvTranspose as OpConvTranspose
from onnx.reference.ops.op_grid_sample import GridSample as OpGridSample
from onnx.reference.ops.op_lp_pool import LpPool as OpLpPool
from onnx.reference.ops.op_max_pool import MaxPool as OpMaxPool
from onnx.reference.ops.op_resize import Resize as OpResize

from headrace.runtime.network.reference.norms import opset_of

_OF_POOLS = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")

_MOST_AXES_OF_MAX_POOL = 5
_RESIZE_BY_CENTRES = 11


class GlobalMaxPool(OpRun):
    """The maximum over all spatial axes. There may be any number of them."""

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GridSample(OpGridSample):
    """Samples integers in float64, and drops the fractions of the results alone.

    https://onnx.ai/onnx/operators/onnx__GridSample.html
    """

    def _run(self, x: Any, grid: Any, **options: Any) -> tuple[Any, ...]:  # type: ignore[override]
        if x.dtype.kind not in "iu":
            return super()._run(x, grid, **options)  # type: ignore[no-untyped-call,no-any-return]
        results: tuple[Any, ...] = super()._run(x.astype(float), grid, **options)  # type: ignore[no-untyped-call]
        return (results[0].astype(x.dtype),)


class LRN(OpRun):
    """Normalises each channel by the squares of the channels around it, with any spatial axes.

    https://onnx.ai/onnx/operators/onnx__LRN.html
    """

    def _run(
        self,
        x: Any,
        alpha: float = 1e-4,
        beta: float = 0.75,
        bias: float = 1.0,
        size: int = 1,
    ) -> tuple[Any, ...]:
        before = (size - 1) // 2
        sides = [(0, 0), (before, size - 1 - before), *((0, 0) for _ in x.shape[2:])]
        squares = np.pad(np.square(x, dtype=np.result_type(x, np.float32)), sides)
        around = np.lib.stride_tricks.sliding_window_view(squares, size, axis=1).sum(axis=-1)
        return ((x / (bias + alpha / size * around) ** beta).astype(x.dtype),)


class ConvTranspose(OpConvTranspose):
    """Computes each group by its own channels, weights and biases, and pads as an `output_shape`
    demands. onnx's operator takes weights and biases of other groups, unless each group has one
    channel and there is no bias.

    https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
    """

    def _run(  # type: ignore[override]
        self, x: Any, w: Any, b: Any = None, group: int = 1, **options: Any
    ) -> tuple[Any, ...]:
        if options.get("output_shape") is not None:
            options = _with_pads_for(x.shape[2:], w.shape[2:], options)
        of_group: Callable[..., Any] = super()._run
        groups = zip(np.split(x, group, axis=1), np.split(w, group), strict=True)
        parts = [of_group(*each, group=1, **options)[0] for each in groups]
        result = np.concatenate(parts, axis=1)
        if b is not None:
            result = result + b.reshape(-1, *[1] * (x.ndim - 2))
        return (result.astype(x.dtype),)


def _with_pads_for(
    sizes: Sequence[int], kernel: Sequence[int], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a ConvTranspose with an `output_shape`, and with the pads that it leads to."""
    ones = [1] * len(sizes)
    strides, dilations = options.get("strides") or ones, options.get("dilations") or ones
    more = options.get("output_padding") or [0] * len(sizes)
    wanted = [*options["output_shape"]][-len(sizes) :]
    each = zip(sizes, kernel, strides, dilations, more, wanted, strict=True)
    total = [
        stride * (size - 1) + extra + (width - 1) * dilation + 1 - result
        for size, width, stride, dilation, extra, result in each
    ]
    less = [missing // 2 for missing in total]
    rest = [missing - half for missing, half in zip(total, less, strict=True)]
    pads = [*less, *rest] if options.get("auto_pad") == "SAME_UPPER" else [*rest, *less]
    return {**options, "auto_pad": "NOTSET", "pads": pads, "output_shape": wanted}


class AveragePool(AveragePool_19):
    """Counts gaps in a window when it pads the image, which onnx's operator does not. Lets a last
    window reach beyond the end if the number of results is rounded up; onnx's operator moves all
    windows. Refuses a window that is larger than the padded image, if it counts padding or has
    gaps, or if it is larger by a stride. onnx's operator makes results of nothing in that case."""

    def _run(self, x: Any, **options: Any) -> Any:  # type: ignore[override]
        options = {name: options.get(name) for name in (*_OF_POOLS, "count_include_pad")}
        options = _with_fitting_windows(x.shape[2:], options)
        options = _with_explicit_pads(x.shape[2:], options)
        if not options["count_include_pad"] or not any(options["pads"] or ()):
            options = {**_with_rounded_up_pads(x.shape[2:], options), "count_include_pad": 0}
        return super()._run(x, **options)  # type: ignore[no-untyped-call]


class LpPool(OpLpPool):
    """Counts gaps in a window when it pads the image, which onnx's operator does not. What lies
    beyond the end counts as zero if the number of results is rounded up. Refuses a window that is
    larger than the padded image, if it has gaps or is larger by a stride."""

    def _run(self, x: Any, p: float = 2, **options: Any) -> Any:  # type: ignore[override]
        options = {name: options.get(name) for name in _OF_POOLS}
        options = _with_fitting_windows(x.shape[2:], options)
        options = _with_explicit_pads(x.shape[2:], options)
        options = _with_rounded_up_pads(x.shape[2:], options)
        return super()._run(x, p=p, **options)  # type: ignore[no-untyped-call]


class MaxPool(OpMaxPool):
    """Makes as many results with SAME_LOWER as with SAME_UPPER, and puts an odd pad in front. onnx
    does this if strides and dilations are 1, but in that case it does not count indices as ONNX
    specifies, and takes the pads in another order. A window that is larger than the padded image is
    refused, if it has gaps or is larger by a stride."""

    def _run(self, x: Any, **options: Any) -> Any:  # type: ignore[override]
        options = {name: options.get(name) for name in (*_OF_POOLS, "storage_order")}
        options = _with_fitting_windows(x.shape[2:], options)
        options = _with_explicit_pads(x.shape[2:], options)
        options = _with_rounded_up_pads(x.shape[2:], options)
        if x.ndim <= _MOST_AXES_OF_MAX_POOL:
            return self._max_pool(x, **options)  # type: ignore[no-untyped-call]
        return super()._run(x, **options)  # type: ignore[no-untyped-call]


def _with_explicit_pads(sizes: Sequence[int], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a pool, with the pads that SAME_UPPER or SAME_LOWER stands for. The number of
    results is the size divided by the stride, rounded up."""
    if not (options["auto_pad"] or "").startswith("SAME"):
        return {**options}
    strides = options["strides"] or [1] * len(sizes)
    dilations = options["dilations"] or [1] * len(sizes)
    windows = zip(sizes, options["kernel_shape"], strides, dilations, strict=True)
    missing = [
        max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
        for size, kernel, stride, dilation in windows
    ]
    less = [padding // 2 for padding in missing]
    more = [padding - half for padding, half in zip(missing, less, strict=True)]
    pads = [*more, *less] if options["auto_pad"] == "SAME_LOWER" else [*less, *more]
    return {**options, "auto_pad": "NOTSET", "pads": pads, "ceil_mode": 0}


def _with_rounded_up_pads(sizes: Sequence[int], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a pool. Larger pads stand for the rounding up of the number of results."""
    if not options["ceil_mode"] or options["auto_pad"] not in (None, "NOTSET"):
        return {**options}
    return {**options, "pads": _rounded_up(sizes, options), "ceil_mode": 0}


def _with_fitting_windows(sizes: Sequence[int], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a pool. A window may be larger than the padded image by less than a stride.
    Then the pads grow, and the window gives one result, as in ONNX's shape inference.

    Raises:
        ValueError: a window does not fit. If the number of results is rounded up, or padding keeps
            it the same, a window may reach beyond the end.
    """
    if options["ceil_mode"] or (options["auto_pad"] or "").startswith("SAME"):
        return {**options}
    count, kernel = len(sizes), options["kernel_shape"]
    pads = [*(options["pads"] or [0] * 2 * count)]
    strides = options["strides"] or [1] * count
    dilations = options["dilations"] or [1] * count
    is_cut = {*dilations} == {1} and not options.get("count_include_pad")
    for at, size in enumerate(sizes):
        extent = (kernel[at] - 1) * dilations[at] + 1
        padded = size + pads[at] + pads[at + count]
        lacking = max(0, extent - padded)
        if lacking and not (is_cut and size and lacking < strides[at]):
            raise ValueError(
                f"a window of {extent} does not fit into {padded} elements of axis {at + 2}"
            )
        pads[at + count] += lacking
    return {**options, "pads": pads if any(pads) else options["pads"]}


def _rounded_up(sizes: Sequence[int], options: Mapping[str, Any]) -> list[int]:
    """Larger pads. With them, rounding down makes as many results as rounding up makes with the
    pads in `options`."""
    count, kernel = len(sizes), options["kernel_shape"]
    pads = options["pads"] or [0] * 2 * count
    strides = options["strides"] or [1] * count
    dilations = options["dilations"] or [1] * count
    after = []
    for at, size in enumerate(sizes):
        extent = (kernel[at] - 1) * dilations[at] + 1
        steps = -(-(size + pads[at] + pads[at + count] - extent) // strides[at])
        if steps * strides[at] >= size + pads[at]:
            steps -= 1
        due = steps * strides[at] + extent - size - pads[at]
        after.append(max(due, pads[at + count]))
    return [*pads[:count], *after]


class Resize(OpResize):
    """Refuses pytorch_half_pixel if more than the two nearest elements count. If it makes one
    element, that element should be at 0, but onnx puts it at -0.5."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        mode = getattr(self, "coordinate_transformation_mode", "")
        wide = getattr(self, "mode", "") == "cubic" or getattr(self, "antialias", 0)
        if mode == "pytorch_half_pixel" and wide:
            raise NotImplementedError("Resize by pytorch_half_pixel, cubic or with antialias")

    def _run(  # type: ignore[override]
        self, x: Any, *inputs: Any, **options: Any
    ) -> tuple[Any, ...]:
        if opset_of(self) < _RESIZE_BY_CENTRES:
            return _by_corners(super()._run, x, inputs[0], options["mode"])
        return (*super()._run(x, *inputs, **options),)


class Upsample(OpResize):
    """Takes scales as an attribute, too, and interpolates.

    https://onnx.ai/onnx/operators/onnx__Upsample.html
    """

    def _run(  # type: ignore[override]
        self, x: Any, scales: Any = None, mode: str = "nearest"
    ) -> tuple[Any, ...]:
        return _by_corners(super()._run, x, np.asarray(scales), mode)


def _by_corners(run: Callable[..., Any], x: Any, scales: Any, mode: str) -> tuple[Any, ...]:
    """A Resize before operator set 11, which puts the corners of images above each other."""
    scales = np.asarray(scales, np.float32)
    if mode == "nearest":
        return (_nearest(x, scales),)
    options = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return (*run(x, None, scales, mode=mode, **options),)


def _nearest(x: Any, scales: Any) -> Any:
    """Takes the element before each place, or the one after it along axes that get shorter. ONNX
    does not say which one, but its case of set 10 does, and ONNX Runtime takes the same."""
    for axis, scale in enumerate(scales):
        places = np.arange(int(x.shape[axis] * scale), dtype=np.float32) / scale
        x = np.take(x, (np.ceil(places) if scale < 1 else places).astype(np.int64), axis)
    return x


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
