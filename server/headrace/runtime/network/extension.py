"""Custom operators as ONNX local functions. They are data and contain no code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from headrace.runtime.errors import InvalidArgument, InvalidModel
from headrace.runtime.intake import onnx_bytes, parts, stripping
from headrace.runtime.intake import read as intake
from headrace.runtime.intake.inlining import Identifier, calls, settle_functions
from headrace.runtime.intake.limits import Limits
from headrace.runtime.network.network import Network

_PASSED = onnx.helper.make_tensor_value_info("headrace/extension", onnx.TensorProto.FLOAT, [])
_GRAPH: Final = onnx.ModelProto(
    graph=onnx.GraphProto(input=[_PASSED], output=[_PASSED])
).SerializeToString()
"""The bytes of a model with a minimal graph, because intake refuses a model without a graph.
protobuf merges a field that occurs twice, so you can append these bytes to any model."""

_FUNCTIONS: Final = 25
"""The number of the field of a ModelProto that has its functions."""


def read_functions(data: bytes, limits: Limits = Limits()) -> list[ir.Function]:  # noqa: B008
    """The local functions of a serialised ModelProto. Its graph does not matter.

    Raises:
        InvalidArgument: the bytes are not a model, its functions are hostile or wrong, it has no
            functions, or a function would replace an operator of ONNX.
    """
    try:
        model = intake.from_bytes(data + _GRAPH, limits)
    except InvalidModel as error:
        message = _reason(data, limits) or error.message
        if _is_function(data, limits):
            message = (
                "this is a FunctionProto; put it into the functions of a ModelProto, which also "
                "says its IR version, and send that: ModelProto(ir_version=10, functions=[...])"
            )
        raise InvalidArgument(message, field="functions") from error
    functions = list(model.functions.values())
    if not functions:
        raise InvalidArgument(
            "the model holds no local functions; an extension is a model with some",
            field="functions",
        )
    for function in functions:
        if function.domain == "" or function.domain.startswith("ai.onnx"):
            raise InvalidArgument(
                f"the function {function.name!r} is in ONNX's own domain; give it one of yours",
                field="functions",
            )
    return functions


def write_functions(functions: Sequence[ir.Function]) -> bytes:
    """Serialises functions for `read_functions`."""
    opsets = {"": 1}
    for function in functions:
        for domain, version in function.opset_imports.items():
            opsets[domain] = max(version, opsets.get(domain, 0))
        opsets.setdefault(function.domain, 1)
    carrier = ir.Model(
        ir.Graph([], [], nodes=[], opset_imports=opsets, name="extension"),
        ir_version=10,
        functions=[function.clone() for function in functions],
    )
    return b"".join(onnx_bytes.serialize(carrier))


def _reason(data: bytes, limits: Limits) -> str | None:
    """Why the bytes by themselves are no message of protobuf's; None if they are one."""
    try:
        stripping.strip(data, limits)
    except InvalidModel as error:
        return error.message
    return None


def _is_function(data: bytes, limits: Limits) -> bool:
    """Whether the bytes are those of a FunctionProto, a field of a ModelProto."""
    try:
        wrapped = onnx_bytes.as_field(_FUNCTIONS, data)
        stripped, _ = stripping.strip(wrapped, limits)
        model = onnx.ModelProto()
        parts.merge(model, stripped)
        (function,) = model.functions
    except (InvalidModel, DecodeError, UnicodeDecodeError):
        return False
    return bool(function.name and function.node and function.opset_import)


def merge_functions(network: Network, functions: Sequence[ir.Function]) -> Network:
    """`network` with those of `functions` that its nodes call and that it does not define itself.
    If there are none, the result is the same object. If several functions have the same name, the
    last one is used.

    Raises:
        InvalidModel: the functions would make the network too large.
    """
    known = {function.identifier(): function for function in functions}
    own = network.model.functions
    wanted = set(calls(network.model.graph))
    for function in own.values():
        wanted |= calls(function).keys()
    needed: dict[Identifier, ir.Function] = {}
    while wanted := {key for key in wanted if key in known and key not in own | needed}:
        needed |= {key: known[key] for key in sorted(wanted)}
        wanted = set().union(*(calls(known[key]) for key in wanted))
    if not needed:
        return network
    merged = network.clone()
    model = merged.model
    for key, function in needed.items():
        model.functions[key] = function.clone()
        for domain, version in function.opset_imports.items():
            model.opset_imports.setdefault(domain, version)
        model.opset_imports.setdefault(function.domain, 1)
    settle_functions(model, Limits())
    return merged
