"""Layers that OpenVINO accepts but computes differently from ONNX.

We found them by running onnx's backend cases against OpenVINO 2026.4 on processors. Each rule names
the case that shows its fault. A rule is as narrow as the fault. If a rule depends on something that
is not known before a run, the layer is refused, because its result could be wrong without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import prod
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.plugins.openvino.constants import empty_constants, wide_integers
from headrace.plugins.openvino.constants.values import constant, input_of, sizes_of
from headrace.plugins.openvino.limits.attention import ATTENTION
from headrace.plugins.openvino.limits.images import IMAGES
from headrace.plugins.openvino.limits.losses import LOSSES
from headrace.plugins.openvino.limits.norms import NORMS
from headrace.plugins.openvino.limits.older_sets import OLDER
from headrace.plugins.openvino.limits.quantizing import QUANTIZING, of_onnx_runtime
from headrace.plugins.openvino.limits.ranks import other_rank
from headrace.plugins.openvino.limits.sequences import SEQUENCES

Rule: TypeAlias = Callable[[ir.Node, int], "str | None"]

_SIGNED: Final = (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64)
SSE4: Final = "SSE4"  # the capability of a processor that has no AVX to OpenVINO
_NEED_AVX: Final = ("Resize", "RoiAlign", "Softsign", "Upsample")
_OF_ELEMENTS: Final = ("ReduceL1", "ReduceL2", "ReduceLogSum")
_MOST_AXES: Final = 32
_SLOPES_OF_LAST_AXIS: Final = 7
_SHAPES: Final[Mapping[str, int]] = MappingProxyType(
    {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Unsqueeze": 1}
)
"""Operators that take a shape, or axes to add, and the index of the input that holds it."""


def reason(node: ir.Node, version: int, capabilities: Collection[str] = ()) -> str | None:
    """Why the backend would compute the node wrongly although it accepts it. None if no fault is
    known. `version` is that of the node's operator set, and `capabilities` are the device's
    OPTIMIZATION_CAPABILITIES."""
    if node.domain not in ("", "ai.onnx"):
        return of_onnx_runtime(node)
    rule = _RULES.get(node.op_type)
    known = rule(node, version) if rule is not None else None
    return (
        _old_kernels(node, capabilities)
        or known
        or _axes(node)
        or _reduces_nothing(node)
        or other_rank(node)
        or _doubles(node)
        or wide_integers.reason(node)
        or empty_constants.reason(node)
    )


def _old_kernels(node: ir.Node, capabilities: Collection[str]) -> str | None:
    """test_softsign, test_resize_upsample_sizes_nearest, test_roialign_aligned_true: without AVX,
    kernels are wrong, leave memory as it was, or do not exist."""
    if SSE4 in capabilities and node.op_type in _NEED_AVX:
        return "on processors without AVX, OpenVINO computes this operator wrongly"
    return None


def _axes(node: ir.Node) -> str | None:
    """No case has a tensor of 33 axes. OpenVINO ends the process on such a tensor."""
    ranks = [value.shape.rank() for value in (*node.inputs, *node.outputs) if value and value.shape]
    at = _SHAPES.get(node.op_type)
    given = None if at is None else sizes_of(input_of(node, at))
    if given and given[0] is not None:
        ranks.append(given[0])
    if max(ranks, default=0) > _MOST_AXES:
        return f"OpenVINO has tensors of at most {_MOST_AXES} axes"
    return None


def _doubles(node: ir.Node) -> str | None:
    """test_operator_add_broadcast, test_cast_DOUBLE_to_FLOAT: float64 is computed in float32."""
    if node.op_type in ("Shape", "Size", "Constant"):
        return None
    casts = node.op_type in ("Cast", "CastLike")
    values = (each for each in node.inputs if not casts or constant(each) is None)
    if any(v is not None and v.dtype == ir.DataType.DOUBLE for v in (*values, *node.outputs)):
        return "OpenVINO computes float64 in float32"
    return None


def _reduces_nothing(node: ir.Node) -> str | None:
    """No case has a norm or a logarithm of sums over no axes, which are those of the elements."""
    if node.op_type not in _OF_ELEMENTS or not node.attributes.get_int("noop_with_empty_axes", 0):
        return None
    axes = constant(input_of(node, 1))
    if axes is not None and axes.size:
        return None
    return "if there are no axes, OpenVINO returns the data as they are"


def _bit_shift(node: ir.Node, _: int) -> str | None:
    """test_bitshift_right_int32_negative_input, test_bitshift_left_int8_overflow. No case shows
    that the backend's 5 << 6 is 255 in eight bits. No case shows that the backend returns a list of
    one element for a scalar and a constant."""
    value, shift = input_of(node, 0), input_of(node, 1)
    if value is None or value.dtype is None or value.dtype in _SIGNED:
        return "OpenVINO shifts signed integers wrongly if they are negative or overflow"
    if value.dtype == ir.DataType.UINT8 and node.attributes.get_string("direction") == "LEFT":
        return "OpenVINO saturates uint8, but ONNX drops the bits that are shifted out"
    if not sizes_of(value) and not sizes_of(shift) and (constant(value) or constant(shift)):
        return "OpenVINO returns a list of one element instead of a scalar"
    return None


def _cast(node: ir.Node, _: int) -> str | None:
    """test_cast_FLOAT_to_FLOAT8E4M3FN, test_cast_FLOAT_to_FLOAT8E5M2,
    test_cast_e8m0_FLOAT_to_FLOAT8E8M0."""
    target = node.outputs[0].dtype
    if target == ir.DataType.FLOAT8E8M0:
        return "OpenVINO rounds to even and saturates whenever it casts to float8e8m0"
    saturates = node.attributes.get_int("saturate", 1)
    if saturates and target in (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2):
        return f"OpenVINO does not saturate when it casts to {target.name.lower()}"
    return None


def _celu(node: ir.Node, _: int) -> str | None:
    """No case has an alpha of 0. ONNX divides by it."""
    if node.attributes.get_float("alpha", 1.0) == 0:
        return "OpenVINO computes a Relu for an alpha of 0, and ONNX divides by it"
    return None


def _dft(*_: object) -> str:
    """test_dft_rfft, test_dft_axis and all other cases of DFT."""
    return "OpenVINO's Fourier transforms return other shapes and have errors of 1e-4"


def _expand(node: ir.Node, _: int) -> str | None:
    """No case expands to the shape of a scalar, which is a list without sizes."""
    if sizes_of(input_of(node, 1)) == [0]:
        return "OpenVINO cannot expand to the shape of a scalar"
    return None


def _gemm(node: ir.Node, _: int) -> str | None:
    """No case scales integers."""
    scales = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    value = input_of(node, 0)
    if value is not None and value.dtype is not None and value.dtype.is_floating_point():
        return None
    if not all(scale.is_integer() for scale in scales):
        return "for integers, OpenVINO drops the fractions of alpha and beta"
    return None


def _hardmax(node: ir.Node, _: int) -> str | None:
    """No case has an axis without elements."""
    sizes = sizes_of(input_of(node, 0))
    if sizes is None or None in sizes:
        return "for an empty tensor, OpenVINO returns another shape"
    return None


def _loop(node: ir.Node, _: int) -> str | None:
    """No case has a negative trip count. `repairs` handles a trip count that is not constant."""
    count = constant(input_of(node, 0))
    if count is not None and (count.numpy() < 0).any():
        return "OpenVINO treats a negative trip count as no limit"
    return None


def _non_zero(node: ir.Node, _: int) -> str | None:
    """No case applies NonZero to a constant. OpenVINO computes such a node at the load."""
    if constant(input_of(node, 0)) is not None:
        return "for a constant, OpenVINO may return indices that nothing has written"
    return None


def _prelu(node: ir.Node, version: int) -> str | None:
    """test_PReLU_3d_multiparam: before operator set 7, a list of slopes belongs to the second axis.
    Since then it belongs to the last axis. No case shows it. No case has integers that are
    constants. `guards` checks other ones."""
    known = [constant(input_of(node, at)) for at in range(2)]
    if all(each is not None and not each.dtype.is_floating_point() for each in known):
        return "OpenVINO computes integers in float32"
    data, slopes = (sizes_of(input_of(node, at)) for at in range(2))
    if data is not None and slopes is not None and version >= _SLOPES_OF_LAST_AXIS:
        beside = zip(reversed(slopes), [*reversed(data), *[1] * len(slopes)], strict=False)
        if any(slope != 1 and _differ(slope, size) for slope, size in beside):
            return "the slopes do not fit the data"  # if both are constants, the process ends
    if version < _SLOPES_OF_LAST_AXIS or slopes is None or len(slopes) != 1 or slopes == [1]:
        return None
    if data is not None and (len(data) <= 2 or _differ(data[1], slopes[0])):
        return None
    return "OpenVINO applies a list of slopes along the second axis"


def _reshape(node: ir.Node, _: int) -> str | None:
    """No case has zeros in a shape that does not fit. OpenVINO then does not count elements: it
    leaves some out, or reads beyond the last one."""
    sizes, given = sizes_of(input_of(node, 0)), constant(input_of(node, 1))
    if sizes is None or None in sizes or given is None:
        return None
    pattern = given.numpy().ravel().tolist()
    if not node.attributes.get_int("allowzero", 0):
        pattern = [
            sizes[at] if size == 0 and at < len(sizes) else size for at, size in enumerate(pattern)
        ]
    if -1 not in pattern and prod(pattern) != prod(size or 0 for size in sizes):
        return "the shape does not fit the number of elements"
    return None


def _clip(node: ir.Node, _: int) -> str | None:
    """No case has data of unknown rank. If the layer before is not read for that reason, OpenVINO
    looks for the limits of a type that it does not know, and ends the process."""
    bounds = [input_of(node, 1), input_of(node, 2)]
    if sizes_of(input_of(node, 0)) is None and None in bounds:
        return "OpenVINO needs both bounds for data whose number of axes is not known"
    return None


def _differ(one: int | None, other: int | None) -> bool:
    """Whether two sizes are known to differ."""
    return one is not None and other is not None and one != other


def _shrink(node: ir.Node, _: int) -> str | None:
    """No case shrinks integers."""
    value = input_of(node, 0)
    if value is not None and value.dtype is not None and value.dtype.is_floating_point():
        return None
    return "for integers, OpenVINO drops the fractions of lambd and bias"


def _space_to_depth(node: ir.Node, _: int) -> str | None:
    """test_spacetodepth_crd_mode_example."""
    if node.attributes.get_string("mode", "DCR") != "DCR":
        return "OpenVINO ignores mode=CRD"
    return None


def _split(node: ir.Node, _: int) -> str | None:
    """No case has a negative length."""
    lengths = constant(input_of(node, 1))
    if lengths is not None and (lengths.numpy() < 0).any():
        return "OpenVINO treats a negative length as the rest of the axis"
    return None


def _tile(node: ir.Node, _: int) -> str | None:
    """test_tile. The result is right with one to three dimensions. A scalar ends the process."""
    sizes = sizes_of(input_of(node, 0))
    if constant(input_of(node, 1)) is None and (sizes is None or not 1 <= len(sizes) <= 3):
        return "with computed repeats, OpenVINO returns memory that nothing has written"
    return None


def _unique(node: ir.Node, _: int) -> str | None:
    """No case has an axis out of bounds. With a constant as data, it ends the process."""
    sizes, axis = sizes_of(input_of(node, 0)), node.attributes.get_int("axis", 0)
    if sizes is not None and "axis" in node.attributes and not -len(sizes) <= axis < len(sizes):
        return f"axis {axis} of a tensor of {len(sizes)} axes"
    return None


def _where(node: ir.Node, _: int) -> str | None:
    """No case has a constant condition."""
    condition = constant(input_of(node, 0))
    sizes = [sizes_of(input_of(node, at)) for at in (1, 2)]
    free = any(each is None or None in each for each in sizes)
    if condition is not None and free and len(np.unique(condition.numpy())) == 1:
        return (
            "OpenVINO drops what a constant condition does not choose, and the check of its shape"
        )
    return None


_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **ATTENTION,
        **IMAGES,
        **LOSSES,
        **NORMS,
        **OLDER,
        **QUANTIZING,
        **SEQUENCES,
        "BitShift": _bit_shift,
        "Cast": _cast,
        "CastLike": _cast,
        "Celu": _celu,
        "Clip": _clip,
        "DFT": _dft,
        "Expand": _expand,
        "Gemm": _gemm,
        "Hardmax": _hardmax,
        "Loop": _loop,
        "NonZero": _non_zero,
        "PRelu": _prelu,
        "Reshape": _reshape,
        "Shrink": _shrink,
        "SpaceToDepth": _space_to_depth,
        "Split": _split,
        "Tile": _tile,
        "Unique": _unique,
        "Where": _where,
    }
)
