"""What OpenVINO takes and then computes something else than ONNX says.

Found by running onnx's backend cases against OpenVINO 2026.4 on processors; the case that shows a
fault is named beside the rule for it. A rule is as narrow as the fault. Where what it depends on is
not known before a run, the layer is refused, for it would be silently wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Final, TypeAlias

import onnx_ir as ir

from headrace.plugins.openvino.constants import empty_constants, wide_integers
from headrace.plugins.openvino.constants.values import constant, input_of, sizes_of

Rule: TypeAlias = Callable[[ir.Node, int], "str | None"]

_SIGNED: Final = (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64)


def reason(node: ir.Node, version: int) -> str | None:
    """Why the node, of an operator set of `version`, would be wrong though the backend takes it;
    None if nothing is known against it."""
    if node.domain not in ("", "ai.onnx"):
        return _onnx_runtimes(node)
    rule = _RULES.get("Reduce" if node.op_type.startswith("Reduce") else node.op_type)
    known = rule(node, version) if rule is not None else None
    return known or _doubles(node) or wide_integers.reason(node) or empty_constants.reason(node)


def _onnx_runtimes(node: ir.Node) -> str | None:
    """Operators that ONNX Runtime has defined, such as DynamicQuantizeLSTM: real networks of these
    were off by a quarter of the output's range."""
    if node.domain == "com.microsoft" and node.op_type.startswith("DynamicQuantize"):
        return "the backend does not quantise the values of a request, as the operator has to"
    return None


def _doubles(node: ir.Node) -> str | None:
    """test_operator_add_broadcast, test_cast_DOUBLE_to_FLOAT: float64 is computed in float32."""
    if node.op_type in ("Shape", "Size", "Constant"):
        return None
    casts = node.op_type in ("Cast", "CastLike")
    values = (each for each in node.inputs if not casts or constant(each) is None)
    if any(v is not None and v.dtype == ir.DataType.DOUBLE for v in (*values, *node.outputs)):
        return "the backend computes float64 in float32"
    return None


def _attention(node: ir.Node, version: int) -> str | None:
    """test_attention_local_window, test_attention_bidirectional_window: windows are ignored.
    test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal: before operator set 24
    the causal mask counts from the first key, in the backend from the first new one.
    test_attention_4d_causal_padded_kv_bf16: wrong on processors without bfloat16."""
    attributes = node.attributes
    windows = [attributes.get(f"{side}_window_size") for side in ("left", "right")]
    if any(size is not None and size.as_int() >= 0 for size in windows):
        return "the backend ignores windows"
    for at, name in enumerate(("q_num_heads", "kv_num_heads")):
        sizes = sizes_of(input_of(node, at)) or []
        if len(sizes) == 4 and attributes.get_int(name, sizes[1]) != sizes[1]:
            return f"the backend ignores {name}, and the tensor may have another number of heads"
    causal = attributes.get_int("is_causal", 0)
    if version < 24 and causal and input_of(node, 4) is not None:
        return "the backend's causal mask after past keys is that of operator set 24"
    query = input_of(node, 0)
    dtype = query.dtype if query is not None else None
    if causal and input_of(node, 6) is not None and dtype in (None, ir.DataType.BFLOAT16):
        return "the backend averages all values in bfloat16 where a query has no key left"
    return None


def _bit_shift(node: ir.Node, _: int) -> str | None:
    """test_bitshift_right_int32_negative_input, test_bitshift_left_int8_overflow. No case shows
    that 5 << 6 is 255 in eight bits, nor that a scalar and a constant make a list of one."""
    value, shift = input_of(node, 0), input_of(node, 1)
    if value is None or value.dtype is None or value.dtype in _SIGNED:
        return "the backend is wrong where signed integers overflow or are negative"
    if value.dtype == ir.DataType.UINT8 and node.attributes.get_string("direction") == "LEFT":
        return "the backend saturates where bits of uint8 are shifted out"
    if not sizes_of(value) and not sizes_of(shift) and (constant(value) or constant(shift)):
        return "the backend makes a list of a scalar"
    return None


def _cast(node: ir.Node, _: int) -> str | None:
    """test_cast_FLOAT_to_FLOAT8E4M3FN, test_cast_FLOAT_to_FLOAT8E5M2,
    test_cast_e8m0_FLOAT_to_FLOAT8E8M0."""
    target = node.outputs[0].dtype
    if not node.attributes.get_int("saturate", 1):
        return None
    if target in (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2):
        return f"the backend does not saturate when it casts to {target.name.lower()}"
    rounding = node.attributes.get_string("round_mode", "up")
    if target == ir.DataType.FLOAT8E8M0 and rounding == "up":
        return "the backend does not round up when it casts to float8e8m0"
    return None


def _convolution(node: ir.Node, _: int) -> str | None:
    """No case has a kernel_shape that is not that of the weights."""
    kernel = node.attributes.get_ints("kernel_shape", [])
    weights = sizes_of(input_of(node, 3 if node.op_type == "QLinearConv" else 1))
    if kernel and weights is not None and list(kernel) != weights[2:]:
        return "the backend ignores kernel_shape, and the weights may have another"
    return None


def _quantized_convolution(node: ir.Node, version: int) -> str | None:
    """No case has more than one scale or zero point of its weights."""
    if any(sizes_of(input_of(node, at)) not in ([], [1]) for at in (4, 5)):
        return "the backend takes each output channel's scale or zero point for another axis"
    return _convolution(node, version)


def _dft(*_: object) -> str:
    """test_dft_rfft, test_dft_axis and all others of it."""
    return "the backend's Fourier transforms have other shapes and axes, and errors of 1e-4"


def _dynamic_quantize(*_: object) -> str:
    """test_dynamicquantizelinear."""
    return "the backend rounds some ties to the wrong integer"


def _quantize(node: ir.Node, _: int) -> str | None:
    """test_dynamicquantizelinear_expanded. With a given scale a half that is rounded the wrong way
    is within what quantisation itself costs."""
    scale = input_of(node, 1)
    if scale is None or scale.is_graph_input() or constant(scale) is not None:
        return None
    return "with a scale that is computed the backend rounds some ties to the wrong integer"


def _expand(node: ir.Node, _: int) -> str | None:
    """No case expands to a shape that is given and has no sizes."""
    if sizes_of(input_of(node, 1)) == [0]:
        return "the backend does not expand to the shape of a scalar"
    return None


def _gemm(node: ir.Node, _: int) -> str | None:
    """No case scales integers."""
    scales = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    value = input_of(node, 0)
    if value is not None and value.dtype is not None and value.dtype.is_floating_point():
        return None
    if not all(scale.is_integer() for scale in scales):
        return "the backend drops the fraction of what scales integers"
    return None


def _hardmax(node: ir.Node, _: int) -> str | None:
    """No case has an axis without elements."""
    sizes = sizes_of(input_of(node, 0))
    if sizes is None or None in sizes:
        return "of a tensor without elements the backend's output has another shape"
    return None


def _loop(node: ir.Node, _: int) -> str | None:
    """No case has a negative trip count. `repairs` sees to one that is not constant."""
    count = constant(input_of(node, 0))
    if count is not None and (count.numpy() < 0).any():
        return "the backend takes a negative trip count for no limit"
    return None


def _lrn(node: ir.Node, _: int) -> str | None:
    """No case has an even size, of which ONNX puts the odd channel behind."""
    if node.attributes.get_int("size", 1) % 2 == 0:
        return "the backend's window of an even size lies one channel before ONNX's"
    return None


def _lstm(node: ir.Node, version: int) -> str | None:
    """test_lstm_with_peepholes."""
    if input_of(node, 7) is not None:
        return "the backend ignores peepholes"
    return _recurrent(node, version)


def _recurrent(node: ir.Node, _: int) -> str | None:
    """test_gru_batchwise, test_lstm_batchwise, test_simple_rnn_batchwise."""
    if node.attributes.get_int("layout", 0):
        return "the backend ignores layout=1"
    return None


def _max_pool(node: ir.Node, _: int) -> str | None:
    """test_maxpool_2d_ceil_output_size_reduce_by_one. The one case of storage_order=1 has a square
    image, of which transposed indices are right; of no other they are."""
    attributes = node.attributes
    if attributes.get_int("storage_order", 0) and len(node.outputs) > 1:
        return "the backend's indices are wrong with storage_order=1"
    if not attributes.get_int("ceil_mode", 0):
        return None
    kernel = attributes.get_ints("kernel_shape", [])
    rank = len(kernel)
    strides = attributes.get_ints("strides", [1] * rank)
    pads = attributes.get_ints("pads", [0] * (2 * rank))
    dilations = attributes.get_ints("dilations", [1] * rank)
    sizes = (sizes_of(input_of(node, 0)) or [None] * (rank + 2))[2:]
    if {len(sizes), len(strides), len(dilations), len(pads) / 2} != {rank}:
        return "its attributes do not fit the rank of the image"
    for axis, size in enumerate(sizes):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        begin, end, stride = pads[axis], pads[axis + rank], strides[axis]
        if size is None:
            fits = window >= end + stride
        else:
            last = ceil((size + begin + end - window) / stride) * stride
            fits = last < size + begin
        if not fits:
            return "with ceil_mode the backend keeps a last window that lies in the padding"
    return None


def _reduce(node: ir.Node, _: int) -> str | None:
    """No case has an axis that is not in a list."""
    if sizes_of(input_of(node, 1)) == []:
        return "the backend ignores axes that are a scalar"
    return None


def _resize(node: ir.Node, _: int) -> str | None:
    """test_resize_downsample_scales_linear_antialias,
    test_resize_upsample_sizes_nearest_not_larger,
    test_resize_upsample_scales_cubic_A_n0p5_exclude_outside,
    test_resize_downsample_scales_linear_align_corners."""
    attributes = node.attributes
    if attributes.get_int("antialias", 0):
        return "the backend ignores antialias"
    policy = attributes.get_string("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" and input_of(node, 3) is not None:
        return f"the backend ignores keep_aspect_ratio_policy={policy}"
    mode = attributes.get_string("mode", "nearest")
    if mode == "nearest":
        return None
    if attributes.get_int("exclude_outside", 0):
        return "the backend ignores exclude_outside"
    if attributes.get_string("coordinate_transformation_mode", "half_pixel") != "align_corners":
        return None
    if input_of(node, 2) is not None and not _gives_whole_sizes(node):
        return "with align_corners the backend is wrong where a scale gives no whole size"
    return None


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
        return "the backend takes the maximum of other points"
    return None


def _space_to_depth(node: ir.Node, _: int) -> str | None:
    """test_spacetodepth_crd_mode_example."""
    if node.attributes.get_string("mode", "DCR") != "DCR":
        return "the backend ignores mode=CRD"
    return None


def _split(node: ir.Node, _: int) -> str | None:
    """No case has a negative length."""
    lengths = constant(input_of(node, 1))
    if lengths is not None and (lengths.numpy() < 0).any():
        return "the backend takes a negative length for what is left"
    return None


def _tile(node: ir.Node, _: int) -> str | None:
    """test_tile; with one to three dimensions it is right. A scalar ends the process."""
    sizes = sizes_of(input_of(node, 0))
    if constant(input_of(node, 1)) is None and (sizes is None or not 1 <= len(sizes) <= 3):
        return "with repeats that are computed the backend's output is not initialised"
    return None


def _upsample(node: ir.Node, version: int) -> str | None:
    """test_upsample_nearest has whole scales. ONNX knows none below 1."""
    if version < 9:
        scales, sizes = node.attributes.get_floats("scales", []), sizes_of(input_of(node, 0))
    else:
        given = constant(input_of(node, 1))
        scales, sizes = ([] if given is None else given.numpy().tolist()), sizes_of(node.inputs[0])
    if not scales or min(scales) < 1 or not _are_whole(scales, sizes or [None] * len(scales)):
        return "the backend is wrong where a scale gives no whole size"
    return None


_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "Attention": _attention,
        "BitShift": _bit_shift,
        "Cast": _cast,
        "CastLike": _cast,
        "Conv": _convolution,
        "ConvInteger": _convolution,
        "ConvTranspose": _convolution,
        "DFT": _dft,
        "DeformConv": _convolution,
        "DynamicQuantizeLinear": _dynamic_quantize,
        "Expand": _expand,
        "GRU": _recurrent,
        "Gemm": _gemm,
        "Hardmax": _hardmax,
        "LRN": _lrn,
        "LSTM": _lstm,
        "Loop": _loop,
        "MaxPool": _max_pool,
        "QLinearConv": _quantized_convolution,
        "QuantizeLinear": _quantize,
        "RNN": _recurrent,
        "Reduce": _reduce,  # and all whose names begin so
        "Resize": _resize,
        "RoiAlign": _roi_align,
        "SpaceToDepth": _space_to_depth,
        "Split": _split,
        "Tile": _tile,
        "Upsample": _upsample,
    }
)
