"""Ranks of inputs that OpenVINO does not check.

OpenVINO's reader of ONNX and some of its operations reshape a tensor of another rank than ONNX
takes, or repeat it. No case of onnx has one. ONNX names the rank in the text of most operators, but
its inference of shapes checks few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import onnx_ir as ir

from headrace.plugins.openvino.constants.values import sizes_of

_Ranks: TypeAlias = tuple[int, ...]

_ANY: Final[_Ranks] = ()
_LIST: Final[_Ranks] = (1,)
_SINGLE: Final[_Ranks] = (0, 1)
"""A scalar, or a list of one element, which many networks have instead."""
_OF_STEPS: Final[tuple[_Ranks, ...]] = ((3,), (3,), (3,), (2,), _LIST, (3,), (3,), (2,))
"""The inputs of a layer over sequences: data, weights, recurrent weights, biases, lengths, states
and peepholes."""

_RANKS: Final[Mapping[str, tuple[_Ranks, ...]]] = MappingProxyType(
    {
        "AffineGrid": ((3,), _LIST),
        "BatchNormalization": (_ANY, _LIST, _LIST, _LIST, _LIST),
        "CenterCropPad": (_ANY, _LIST),
        "Col2Im": ((3,), _LIST, _LIST),
        "Compress": (_ANY, _LIST),
        "ConstantOfShape": (_LIST,),
        "Conv": (_ANY, _ANY, _LIST),
        "ConvTranspose": (_ANY, _ANY, _LIST),
        "CumSum": (_ANY, _SINGLE),
        "DeformConv": ((4,), (4,), (4,), _LIST, (4,)),
        "DepthToSpace": ((4,),),
        "Expand": (_ANY, _LIST),
        "EyeLike": ((2,),),
        "GRU": _OF_STEPS,
        "Gemm": ((2,), (2,), (0, 1, 2)),
        "GroupNormalization": (_ANY, _LIST, _LIST),
        "InstanceNormalization": (_ANY, _LIST, _LIST),
        "LSTM": _OF_STEPS,
        "MaxRoiPool": ((4,), (2,)),
        "NonMaxSuppression": ((3,), (3,), _SINGLE, _SINGLE, _SINGLE),
        "OneHot": (_ANY, _SINGLE, _LIST),
        "Pad": (_ANY, _LIST, _SINGLE, _LIST),
        "RNN": _OF_STEPS,
        "Range": (_SINGLE, _SINGLE, _SINGLE),
        "Reduce": (_ANY, _LIST),  # also all operators whose names begin with it
        "Reshape": (_ANY, _LIST),
        "Resize": (_ANY, _LIST, _LIST, _LIST),
        "ReverseSequence": (_ANY, _LIST),
        "RoiAlign": ((4,), (2,), _LIST),
        "Slice": (_ANY, _LIST, _LIST, _LIST, _LIST),
        "SpaceToDepth": ((4,),),
        "Split": (_ANY, _LIST),
        "Squeeze": (_ANY, _LIST),
        "Tile": (_ANY, _LIST),
        "TopK": (_ANY, _LIST),
        "Trilu": (_ANY, _SINGLE),
        "Unsqueeze": (_ANY, _LIST),
        "Upsample": (_ANY, _LIST),
    }
)
"""The ranks that the inputs of an operator may have."""


def other_rank(node: ir.Node) -> str | None:
    """Why an input has a rank that ONNX does not allow. None if the ranks are right or not known.
    OpenVINO mends or repeats such an input, or ignores a part of it."""
    ranks = _RANKS.get("Reduce" if node.op_type.startswith("Reduce") else node.op_type, ())
    for index, (value, allowed) in enumerate(zip(node.inputs, ranks, strict=False)):
        sizes = sizes_of(value)
        if sizes is not None and allowed and len(sizes) not in allowed:
            wanted = " or ".join(map(str, allowed))
            return f"input {index} has {len(sizes)} axes, and {node.op_type} takes {wanted}"
    return None
