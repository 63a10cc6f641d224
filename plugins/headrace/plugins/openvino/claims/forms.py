"""The form of a layer: what the list of claims tells apart.

`make claims` finds out which forms OpenVINO computes right, and `claims` looks a layer's form up.
Both ask this module, so they cannot mean different things by a form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

import onnx
import onnx_ir as ir

from headrace.plugins.openvino.claims.attributes import IsFixed, is_constant
from headrace.runtime.network.shapes.operators import operator

QUANTITIES: Final = frozenset(
    [
        "alpha",
        "axes",
        "axis",
        "batch_dims",
        "beta",
        "bias",
        "blocksize",
        "body",
        "cubic_coeff_a",
        "dilations",
        "dtype",
        "else_branch",
        "ends",
        "epsilon",
        "extrapolation_value",
        "gamma",
        "group",
        "hidden_size",
        "high",
        "k",
        "kernel_shape",
        "lambd",
        "max",
        "min",
        "low",
        "momentum",
        "num_groups",
        "num_heads",
        "num_outputs",
        "output_dtype",
        "output_height",
        "output_padding",
        "output_shape",
        "output_width",
        "pads",
        "perm",
        "q_num_heads",
        "kv_num_heads",
        "sampling_ratio",
        "scale",
        "scales",
        "seed",
        "shape",
        "size",
        "softcap",
        "spatial_scale",
        "split",
        "starts",
        "strides",
        "then_branch",
        "to",
        "value",
        "value_float",
        "value_int",
        "threshold",
    ]
)
"""Attributes that may have any value that ONNX allows, unless `attributes` limits it. All others
say what is computed: a layer is claimed only with values of these that were tried."""

_SHORT: Final = MappingProxyType(
    {
        "FLOAT": "f32",
        "FLOAT16": "f16",
        "BFLOAT16": "bf16",
        "DOUBLE": "f64",
        "BOOL": "bool",
        **{f"INT{bits}": f"i{bits}" for bits in (2, 4, 8, 16, 32, 64)},
        **{f"UINT{bits}": f"u{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    }
)
_MANY: Final = "*"
_NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class LayerForm:
    """
    Attributes:
        operator: with its domain if that is not ONNX's own.
        since: the operator set in which ONNX last changed the operator; 0 if ONNX does not have it.
        types: of the inputs and of the outputs that are used, as ``f32,-,i64>f32``. A hyphen stands
            for one that is absent. One type of a list of any length is written once, as ``f32*``.
        constants: a digit for each input in `types`: 1 if it is a constant.
        profile: the attributes that say what is computed, without those that have their default.
        rank: the largest number of axes of an input or output.
    """

    operator: str
    since: int
    types: str
    constants: str
    profile: str
    rank: int


def form_of(node: ir.Node, version: int, is_fixed: IsFixed = is_constant) -> LayerForm:
    """The form of a layer of an operator set's version. All types and ranks must be known.

    Args:
        is_fixed: tells constants.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema = schema_of(domain, node.op_type, version)
    inputs = _shortened([*map(_type, node.inputs)], schema.inputs if schema else ())
    outputs = _shortened([*map(_type, node.outputs)], schema.outputs if schema else ())
    used = (value for value in (*node.inputs, *node.outputs) if value is not None and value.name)
    ranks = (len(value.shape) for value in used if value.shape is not None)
    return LayerForm(
        operator(node),
        schema.since_version if schema else 0,
        f"{','.join(inputs)}>{','.join(outputs)}",
        _constants(node, inputs, is_fixed),
        ",".join(_profile(node, schema)) or _NONE,
        max(ranks, default=0),
    )


@cache
def schema_of(domain: str, operator: str, version: int) -> onnx.defs.OpSchema | None:
    """ONNX's description of an operator; None if ONNX does not have it."""
    try:
        return onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None


def _type(value: ir.Value | None) -> str:
    if value is None or not value.name:
        return _NONE
    if not isinstance(value.type, ir.TensorType):
        return str(value.type).lower()
    return _SHORT.get(value.type.dtype.name, value.type.dtype.name.lower())


def _shortened(types: list[str], ports: Sequence[onnx.defs.OpSchema.FormalParameter]) -> list[str]:
    """The types without absent ones at the end. Equal types of a list become one."""
    while types and types[-1] == _NONE:
        types.pop()
    if ports and ports[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        fixed, listed = types[: len(ports) - 1], types[len(ports) - 1 :]
        if len(set(listed)) == 1:
            return [*fixed, listed[0] + _MANY]
    return types


def _constants(node: ir.Node, inputs: Sequence[str], is_fixed: IsFixed) -> str:
    found = [value is not None and is_fixed(value) for value in node.inputs]
    if inputs and inputs[-1].endswith(_MANY):
        fixed = len(inputs) - 1
        found = [*found[:fixed], any(found[fixed:])]
    return "".join(map(str, map(int, found[: len(inputs)])))


def _profile(node: ir.Node, schema: onnx.defs.OpSchema | None) -> Iterator[str]:
    for name, attribute in sorted(node.attributes.items()):
        if name not in QUANTITIES and not _is_default(attribute, schema):
            value = attribute.value
            items = value if isinstance(value, (tuple, list)) else [value]
            yield f"{name}={'+'.join(map(_text, items))}"


def _is_default(attribute: ir.Attr, schema: onnx.defs.OpSchema | None) -> bool:
    declared = schema.attributes.get(attribute.name) if schema else None
    if declared is None or not declared.default_value.type:
        return False
    return bool(onnx.helper.get_attribute_value(declared.default_value) == _raw(attribute.value))


def _raw(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


def _text(item: object) -> str:
    return "".join(str(item).split()).replace(",", ";")


def covers(tried: Iterable[str], constants: str) -> bool:
    """Whether the constants lie between two that were tried: none of them is a constant that was
    not one in the second, and all that were constants in the first are."""
    tried = {each for each in tried if len(each) == len(constants)}
    below = any(_within(each, constants) for each in tried)
    return below and any(_within(constants, each) for each in tried)


def _within(one: str, other: str) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))
