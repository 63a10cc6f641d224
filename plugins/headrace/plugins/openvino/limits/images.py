"""Layers on images that OpenVINO accepts but computes differently. `limits` has the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import constant, input_of, sizes_of
from headrace.plugins.openvino.limits.quantizing import sum_of_products

_MOST_AXES_OF_IMAGES: Final = 4


def _convolution(node: ir.Node, _: int) -> str | None:
    """No case has a kernel_shape that differs from the shape of the weights, or a kernel of
    nothing."""
    kernel = node.attributes.get_ints("kernel_shape", [])
    weights = sizes_of(input_of(node, 3 if node.op_type == "QLinearConv" else 1))
    if kernel and weights is not None and list(kernel) != weights[2:]:
        return "OpenVINO ignores kernel_shape, and the weights may have another shape"
    if weights is not None and 0 in weights[2:]:
        return "OpenVINO takes a kernel of nothing for one of a single element"
    return None


def _integers(node: ir.Node, version: int) -> str | None:
    return sum_of_products(node) or _convolution(node, version)


def _transposed_convolution(node: ir.Node, version: int) -> str | None:
    """The case test_convtranspose_autopad_same has known sizes and no pads, and is right."""
    if node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        sizes = sizes_of(input_of(node, 0))
        if sizes is None or None in sizes[2:] or "pads" in node.attributes:
            return "OpenVINO ignores auto_pad if there are pads or if a size is not known"
    return _zeros_after(node) or _convolution(node, version)


def _zeros_after(node: ir.Node) -> str | None:
    """Why the result might end in more zeros than ONNX allows: fewer along each axis than the
    stride. No case has too many."""
    attributes = node.attributes
    strides = [*attributes.get_ints("strides", []), 1, 1, 1]
    added = attributes.get_ints("output_padding", [])
    if any(not 0 <= count < stride for count, stride in zip(added, strides, strict=False)):
        return "OpenVINO accepts an output_padding that is not less than the stride"
    ends = attributes.get_ints("output_shape", [])
    rank = 2 + len(ends)
    image, weights = (sizes_of(input_of(node, at)) or [None] * rank for at in (0, 1))
    if ends and {len(image), len(weights)} != {rank}:
        return "output_shape does not fit the rank of the image"
    dilations = [*attributes.get_ints("dilations", []), 1, 1, 1]
    for axis, end, stride, dilation in zip(range(2, rank), ends, strides, dilations, strict=False):
        size, kernel = image[axis], weights[axis]
        if size is None or kernel is None:
            return "OpenVINO accepts an image of any size for an output_shape"
        if end - ((size - 1) * stride + (kernel - 1) * dilation + 1) >= stride:
            return "OpenVINO accepts an image that is too small for its output_shape"
    return None


def _quantized_convolution(node: ir.Node, version: int) -> str | None:
    """No case has more than one scale or zero point for its weights."""
    if any(sizes_of(input_of(node, at)) not in ([], [1]) for at in (4, 5)):
        return "OpenVINO applies the scale or zero point of each output channel to another axis"
    return _convolution(node, version)


def _center_crop_pad(node: ir.Node, _: int) -> str | None:
    """No case has an empty list of axes, fewer sizes than axes, or an axis twice."""
    axes = node.attributes.get_ints("axes", [])
    data, target = (sizes_of(input_of(node, at)) for at in range(2))
    if axes:  # OpenVINO compares their number with that of the sizes
        known = axes if data is None else [axis % max(len(data), 1) for axis in axes]
        twice = len({*known}) < len(axes) or (data is None and min(axes) < 0 <= max(axes))
        return "an axis is named twice, or may be" if twice else None
    count = 0 if "axes" in node.attributes else len(data) if data is not None else None
    if count is None or target != [count]:
        return "without axes, OpenVINO applies as many sizes as there are to the first axes"
    return None


def _average_pool(node: ir.Node, _: int) -> str | None:
    """In the case test_averagepool_2d_ceil_last_window_starts_on_pad no window reaches too far."""
    attributes = node.attributes
    flags = (attributes.get_int(name, 0) for name in ("ceil_mode", "count_include_pad"))
    pads = attributes.get_ints("pads", [])
    if not all(flags) or not any(pads):
        return None
    kernel = attributes.get_ints("kernel_shape", [])
    rank = len(kernel)
    strides = attributes.get_ints("strides", [1] * rank)
    dilations = attributes.get_ints("dilations", [1] * rank)
    sizes = (sizes_of(input_of(node, 0)) or [None] * (rank + 2))[2:]
    if {len(sizes), len(strides), len(dilations), len(pads) / 2} != {rank}:
        return "the attributes do not fit the rank of the image"
    for axis, size in enumerate(sizes):
        window, stride = (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        if size is not None:
            whole = size + pads[axis] + pads[axis + rank]
            last = ceil((whole - window) / stride) * stride
            if last >= size + pads[axis]:
                last -= stride
        if size is None or last + window > whole:
            return "with ceil_mode, OpenVINO counts what is beyond the padding of the last window"
    return None


def _grid_sample(node: ir.Node, _: int) -> str | None:
    """No case samples between two bools."""
    value = input_of(node, 0)
    between = node.attributes.get_string("mode", "linear") != "nearest"
    if between and value is not None and value.dtype in (None, ir.DataType.BOOL):
        return "OpenVINO samples between bools as between the numbers 0 and 1, and rounds down"
    return None


def _lp_pool(node: ir.Node, _: int) -> str | None:
    """No case rounds the number of results up."""
    if node.attributes.get_int("ceil_mode", 0):
        return "with ceil_mode, OpenVINO scales the norm of a last window that reaches too far"
    return None


def _max_pool(node: ir.Node, _: int) -> str | None:
    """test_maxpool_2d_ceil_output_size_reduce_by_one. The only case with storage_order=1 has a
    square image. Transposed indices are right for a square image, but for no other image. No case
    has a window that lies in the padding."""
    attributes = node.attributes
    if attributes.get_int("storage_order", 0) and len(node.outputs) > 1:
        return "OpenVINO returns wrong indices for storage_order=1"
    kernel = attributes.get_ints("kernel_shape", [])
    rank = len(kernel)
    pads = attributes.get_ints("pads", [0] * (2 * rank))
    dilations = attributes.get_ints("dilations", [1] * rank)
    reach = [(size - 1) * gap for size, gap in zip(kernel, dilations, strict=False)]
    sizes = (sizes_of(input_of(node, 0)) or [None] * (rank + 2))[2:]
    padded = any(pads) or attributes.get_string("auto_pad", "").startswith("SAME")
    missed = padded and any(
        gap > 1 and (size is None or size < gap)
        for gap, size in zip(dilations, sizes, strict=False)
    )
    if missed or any(pad > most for pad, most in zip(pads, 2 * reach, strict=False)):
        return "OpenVINO's largest element of padding alone is not infinite"
    if not attributes.get_int("ceil_mode", 0):
        return None
    strides = attributes.get_ints("strides", [1] * rank)
    if {len(sizes), len(strides), len(dilations), len(pads) / 2} != {rank}:
        return "the attributes do not fit the rank of the image"
    for axis, size in enumerate(sizes):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        begin, end, stride = pads[axis], pads[axis + rank], strides[axis]
        if size is None:
            fits = window >= end + stride
        else:
            last = ceil((size + begin + end - window) / stride) * stride
            fits = last < size + begin
        if not fits:
            return "with ceil_mode, OpenVINO keeps a last window that lies in the padding"
    return None


def _resize(node: ir.Node, _: int) -> str | None:
    """test_resize_downsample_scales_linear_antialias,
    test_resize_upsample_sizes_nearest_not_larger,
    test_resize_upsample_scales_cubic_A_n0p5_exclude_outside,
    test_resize_downsample_scales_linear_align_corners."""
    attributes = node.attributes
    if attributes.get_int("antialias", 0):
        return "OpenVINO ignores antialias"
    policy = attributes.get_string("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" and input_of(node, 3) is not None:
        return f"OpenVINO ignores keep_aspect_ratio_policy={policy}"
    mode = attributes.get_string("mode", "nearest")
    corners = attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if (
        corners == "align_corners"
        and input_of(node, 2) is not None
        and not _gives_whole_sizes(node)
    ):
        return "with align_corners, OpenVINO is wrong if a scale does not give a whole size"
    if mode == "nearest":
        return None
    if attributes.get_int("exclude_outside", 0):
        return "OpenVINO ignores exclude_outside"
    if mode == "cubic" and _may_overflow(input_of(node, 0)):
        return "with mode=cubic, OpenVINO lets integers overflow if there are five axes or more"
    return None


def _may_overflow(value: ir.Value | None) -> bool:
    """Whether the value may have integers, and more axes than there are kernels for. No case
    resizes such a value."""
    if value is None or (value.dtype is not None and value.dtype.is_floating_point()):
        return False
    sizes = sizes_of(value)
    return sizes is None or len(sizes) > _MOST_AXES_OF_IMAGES


def _gives_whole_sizes(node: ir.Node) -> bool:
    scales, sizes = constant(input_of(node, 2)), sizes_of(input_of(node, 0))
    if scales is None or sizes is None:
        return False
    axes = node.attributes.get_ints("axes", list(range(len(sizes))))
    known = [sizes[axis] if -len(sizes) <= axis < len(sizes) else None for axis in axes]
    return _are_whole(scales.numpy().reshape(-1).tolist(), known)


def _are_whole(scales: Sequence[float], sizes: Sequence[int | None]) -> bool:
    return all(
        scale.is_integer() or (size is not None and (size * scale).is_integer())
        for scale, size in zip(scales, sizes, strict=False)
    )


def _roi_align(node: ir.Node, _: int) -> str | None:
    """test_roialign_mode_max."""
    if node.attributes.get_string("mode", "avg") == "max":
        return "for mode=max, OpenVINO takes the maximum of other points"
    return None


def _upsample(node: ir.Node, version: int) -> str | None:
    """test_upsample_nearest has whole scales. ONNX has no scales below 1."""
    if version < 9:
        scales, sizes = node.attributes.get_floats("scales", []), sizes_of(input_of(node, 0))
    else:
        given = constant(input_of(node, 1))
        scales, sizes = (
            ([] if given is None else given.numpy().ravel().tolist()),
            sizes_of(node.inputs[0]),
        )
    if not scales or min(scales) < 1 or not _are_whole(scales, sizes or [None] * len(scales)):
        return "OpenVINO is wrong if a scale does not give a whole size"
    return None


IMAGES: Final[Mapping[str, Callable[[ir.Node, int], str | None]]] = MappingProxyType(
    {
        "AveragePool": _average_pool,
        "CenterCropPad": _center_crop_pad,
        "Conv": _convolution,
        "ConvInteger": _integers,
        "ConvTranspose": _transposed_convolution,
        "DeformConv": _convolution,
        "GridSample": _grid_sample,
        "LpPool": _lp_pool,
        "MaxPool": _max_pool,
        "QLinearConv": _quantized_convolution,
        "Resize": _resize,
        "RoiAlign": _roi_align,
        "Upsample": _upsample,
    }
)
