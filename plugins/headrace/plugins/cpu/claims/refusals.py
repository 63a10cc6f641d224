"""Layers that the backend loads, but that fail in a run or compute something else than ONNX says.

The faults were found by running onnx's backend cases against ONNX Runtime 1.31. Each rule is as
narrow as its fault. If a rule depends on something that is not known before a run, it accepts a
layer that might fail, and refuses a layer that might be silently wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir
from onnx import defs

from headrace.plugins.cpu.claims import predictors, rotary, samples, texts
from headrace.runtime.network.constants import const_tensor
from headrace.runtime.network.ranks import TOO_DEEP, exceeds
from headrace.runtime.network.shapes.operators import operator

RANKS: Final[Mapping[str, Mapping[int, int]]] = MappingProxyType(
    {
        "AffineGrid": {1: 1},
        "Attention": {4: 4, 5: 4},
        "EyeLike": {0: 2},
        "MaxRoiPool": {0: 4, 1: 2},
        "NegativeLogLikelihoodLoss": {2: 1},
        "Resize": {1: 1, 2: 1, 3: 1},
        "RoiAlign": {0: 4, 1: 2, 2: 1},
        "STFT": {2: 1},
        "SoftmaxCrossEntropyLoss": {2: 1},
        "Upsample": {1: 1},
    }
)
"""By operator and input: how many axes a tensor must have. The backend does not look, and reads
sizes of axes that are not there. It does not survive some of them."""

_NONE: Final = "the list of axes is empty"
_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def reason(node: ir.Node) -> str | None:
    """Why the node would fail or be wrong though the backend loads it; None if nothing is known."""
    rule = _rule(node)
    why = _omitted(node) or _wrong_rank(node) or (rule(node) if rule is not None else None)
    return TOO_DEEP if exceeds(node) else why


def has_rule(node: ir.Node) -> bool:
    """Whether it depends on the node's inputs and attributes if there is a reason."""
    return None in node.inputs or _rule(node) is not None or operator(node) in RANKS


def _rule(node: ir.Node) -> Callable[[ir.Node], str | None] | None:
    foreign = node.op_type == "Constant" and node.domain not in ("", "ai.onnx")
    return _foreign_constant if foreign else _RULES.get(operator(node))


def _foreign_constant(node: ir.Node) -> str:
    return f"the backend takes a Constant of the domain {node.domain!r} for ONNX's own"


def _omitted(node: ir.Node) -> str | None:
    """Refuses a node that leaves out one of a variable number of inputs: the backend crashes."""
    name = operator(node)
    if None not in node.inputs or not defs.has(name) or name == "Scan":
        return None  # a Scan before operator set 9 has an optional input in front
    declared = defs.get_schema(node.op_type).inputs
    if declared and declared[-1].option == defs.OpSchema.FormalParameterOption.Variadic:
        for index, value in enumerate(node.inputs):
            if value is None and index >= len(declared) - 1:
                return f"input {index} is missing, and ONNX requires it"
    return None


def _wrong_rank(node: ir.Node) -> str | None:
    for index, wanted in RANKS.get(operator(node), {}).items():
        rank = _rank(node, index)
        if rank not in (None, wanted):
            return f"input {index} has {rank} axes; it must have {wanted}"
    return None


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _sizes(value: ir.Value | None) -> list[int | None]:
    """The sizes of the value's dimensions, as far as they are known."""
    if value is None or value.shape is None:
        return []
    return [size if isinstance(size, int) else None for size in value.shape]


def _attention(node: ir.Node) -> str | None:
    if any(node.attributes.get_int(f"{which}_num_heads", 1) == 0 for which in ("q", "kv")):
        return "the number of heads is 0"
    keys, mask = _sizes(_input(node, 1))[-2:-1], _sizes(_input(node, 3))[-1:]
    if _input(node, 6) is not None and keys and mask and None not in keys + mask and keys != mask:
        return "no kernel for a mask that is shorter than the padded keys"
    mode = node.attributes.get_int("qk_matmul_output_mode", 0)
    causal = node.attributes.get_int("is_causal", 0)
    if mode == 2 and causal and len(node.outputs) > 3 and node.outputs[3].name:
        return "with is_causal, the backend leaves the causal mask out of qk_matmul_output"
    return None


def _rank(node: ir.Node, index: int = 0) -> int | None:
    value = _input(node, index)
    return value.shape.rank() if value is not None and value.shape is not None else None


def _batch_normalization(node: ir.Node) -> str | None:
    """The backend writes a running mean or variance over the input that it follows from, also over
    a constant or a caller's input, unless it is a result of the network. Then each request changes
    what the next one gets. Of float16 the backend converts results, so they are never its own."""
    for value in node.outputs[1:3]:
        if not value.name:
            continue
        kept = isinstance(node.graph, ir.Graph) and value.is_graph_output()
        if not kept or value.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return "the backend writes the running mean and variance over its inputs"
    return None


def _pool(node: ir.Node) -> str | None:
    rank = _rank(node)
    if rank is not None and rank > 5:
        return f"no kernel for {rank - 2} spatial axes; the backend supports three at most"
    same = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    if same and any(dilation != 1 for dilation in node.attributes.get_ints("dilations", ())):
        return "with auto_pad, the backend ignores dilations"
    return None


def _loss(node: ir.Node) -> str | None:
    scores, classes = _rank(node), _rank(node, 1)
    if scores is None or classes is None or classes == scores - 1:
        return None
    return f"the target has {classes} axes; it must have {scores - 1}"


def _has_axes(least: int) -> Callable[[ir.Node], str | None]:
    """The rule that the first input has at least so many axes."""

    def rule(node: ir.Node) -> str | None:
        rank = _rank(node)
        if rank is None or rank >= least:
            return None
        return f"the input has {rank} axes; it must have at least {least}"

    return rule


def _split(node: ir.Node) -> str | None:
    """ONNX Runtime counts lengths that the network computes when it loads the whole network."""
    known = _sizes(_input(node, 1))
    if known and known[0] not in (None, 0, len(node.outputs)):
        return f"input 1 has {known[0]} elements for {len(node.outputs)} outputs"
    return None


def _split_to_sequence(node: ir.Node) -> str | None:
    """The backend divides by a constant length while it loads the network."""
    given = _input(node, 1)
    length = None if given is None else const_tensor(given)
    if length is not None and not length.shape.rank() and not length.numpy():
        return "split is 0"
    return None


def _lrn(node: ir.Node) -> str | None:
    return None if _rank(node) in (None, 4) else "the backend supports only two spatial axes"


def _grid_sample(node: ir.Node) -> str | None:
    rank = _rank(node)
    if rank is None or rank == 4:
        return None
    mode = node.attributes.get_string("mode", "linear")
    if rank == 5 and mode not in ("cubic", "bicubic"):
        return None
    return f"no kernel for {mode} sampling over {rank - 2} spatial axes"


def _conv_integer(node: ir.Node) -> str | None:
    zero_point = _sizes(_input(node, 3))
    if zero_point and zero_point != [1]:
        return "no kernel for zero points per channel"
    return None


def _max_unpool(node: ir.Node) -> str | None:
    if _input(node, 2) is not None:
        return "with output_shape, the backend misreads the indices"
    return None


def _conv_transpose(node: ir.Node) -> str | None:
    """ONNX's output sizes are the input's times the strides, even if kernels leave gaps."""
    strides = node.attributes.get_ints("strides", ())
    same = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    if not same or all(stride == 1 for stride in strides):
        return None
    kernel = [*node.attributes.get_ints("kernel_shape", ())] or _sizes(_input(node, 1))[2:]
    dilations = node.attributes.get_ints("dilations", ()) or [1] * len(strides)
    if len(kernel) == len(dilations) == len(strides) and all(
        size is not None and (size - 1) * dilation + 1 >= stride
        for size, dilation, stride in zip(kernel, dilations, strides, strict=True)
    ):
        return None
    return "with auto_pad, the backend's output is too small if a stride is larger than its kernel"


def _mod(node: ir.Node) -> str | None:
    value = _input(node, 0)
    whole = value is not None and value.dtype in _FLOATS and not node.attributes.get_int("fmod", 0)
    return "no kernel for floating point with fmod=0" if whole else None


def _reduce_bool(node: ir.Node) -> str | None:
    value = _input(node, 0)
    empty = value is not None and value.dtype == ir.DataType.BOOL and 0 in _sizes(value)
    return "no kernel for empty boolean tensors" if empty else None


def _resize(node: ir.Node) -> str | None:
    """With aligned corners ONNX places samples by the scale; the backend uses the rounded size."""
    data, smooth = _input(node, 0), node.attributes.get_int("antialias", 0)
    if smooth and data is not None and data.dtype == ir.DataType.INT8:
        return "with antialias, the backend takes negative numbers of 8 bits for 0"
    axes = node.attributes.get_ints("axes", None)
    for index in (2, 3):
        known = _sizes(_input(node, index))
        if axes is not None and known and known[0] not in (None, 0, len(axes)):
            return f"input {index} has {known[0]} elements for {len(axes)} axes"
    given = _input(node, 2)
    constant = const_tensor(given) if given is not None else None
    scales = constant.numpy().ravel().tolist() if constant is not None else [None]
    if any(scale is not None and not scale > 0 for scale in scales):
        return "a scale is not positive"
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode != "align_corners" or given is None:
        return None
    sizes = _sizes(_input(node, 0))
    within = range(-len(sizes), len(sizes))
    known = [sizes[at] if at in within else None for at in axes or range(len(sizes))]
    known += [None] * (len(scales) - len(known))  # if the rank is not known
    if all(map(_gives_whole_size, scales, known)):
        return None
    return "with align_corners, the backend is wrong if size times scale is not a whole number"


def _gives_whole_size(scale: float | None, size: int | None) -> bool:
    if scale is None:
        return False
    return scale.is_integer() or (size is not None and (size * scale).is_integer())


_RULES: Final[Mapping[str, Callable[[ir.Node], str | None]]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("AveragePool", "MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"), _pool
        ),
        **dict.fromkeys(("ReduceMax", "ReduceMin"), _reduce_bool),
        "Attention": _attention,
        "BatchNormalization": _batch_normalization,
        "CenterCropPad": lambda node: None if [*node.attributes.get_ints("axes", (0,))] else _NONE,
        "ConvInteger": _conv_integer,
        "ConvTranspose": _conv_transpose,
        "DFT": _has_axes(2),
        "GatherND": lambda node: (
            "batch_dims is negative" if node.attributes.get_int("batch_dims", 0) < 0 else None
        ),
        "GlobalLpPool": _pool,
        "GridSample": _grid_sample,
        "LRN": _lrn,
        "MaxUnpool": _max_unpool,
        "Mod": _mod,
        "NegativeLogLikelihoodLoss": _loss,
        "NonZero": _has_axes(1),  # without axes, ONNX and the backend disagree about the result
        "QLinearConv": _has_axes(3),
        "Resize": _resize,
        "ReverseSequence": _has_axes(2),
        "STFT": _has_axes(2),
        "SoftmaxCrossEntropyLoss": _loss,
        "Split": _split,
        "SplitToSequence": _split_to_sequence,
        "StringSplit": _has_axes(1),  # the backend gives the count for a scalar an axis
        **predictors.RULES,
        **rotary.RULES,
        **samples.RULES,
        **texts.RULES,
    }
)
