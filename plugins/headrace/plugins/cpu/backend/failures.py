"""Translates ONNX Runtime's errors into headrace's.

ONNX Runtime's exceptions share no base class, so this module tells them apart by name and by stage
(load or run). It removes the code, source location and C++ signature from messages.
"""

from __future__ import annotations

import re

from headrace.plugins.cpu.backend import guard_reasons
from headrace.runtime.errors import (
    Cancelled,
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    InvalidModel,
    ResourceExhausted,
)

REFUSED = "ONNX Runtime does not load the model: "
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_SHORT_LOCATION = re.compile(r"^[\w./-]+\.(?:cc|h):\d+ \w+ ")
_NODE = re.compile(
    r"^(?:This is an invalid model\. )?"
    r"(?:In Node, .*? , Error |Fatal error: |Node \(.*?\) Op \(.*?\) |Type Error: )?"
)
_LOCATION = re.compile(r"^(?:Exception during (?:loading|initialization): )?/\S+?:\d+ ")
_SIGNATURE_END = re.compile(r"( const)?( \[with .*?\])?( |$)")
_KERNEL = re.compile(
    r"Non-zero status code returned while running (?P<op>\S+) node\. "
    r"Name:'(?P<layer>.*?)' Status Message: (?P<why>.*)",
    re.DOTALL,
)
_BAD_MODEL = ("InvalidArgument", "InvalidGraph", "InvalidProtobuf")
_NOT_RECORDABLE = "cannot use the graph capture feature"
_GPU = re.compile(r"\b(?:CUDA|CUDNN|CUBLAS|CURAND|CUFFT|CUSPARSE) (?:failure|error)\b")
_PLACE = re.compile(r" ; GPU=.*", re.DOTALL)
_RANK = re.compile(r"number of dimensions must be within \[0, (\d+)\]")  # NumPy's
_SHAPE = re.compile(
    r"array is too big|[Mm]aximum allowed dimension"
)  # NumPy's, even of no elements
_NO_MEMORY = re.compile(r"bad_alloc|[Ff]ailed to allocate memory|out of memory|_ALLOC_FAILED")


def load_failure(error: Exception) -> HeadraceError:
    """The error to raise for an error that opening a session raised.

    Cancelled: the load was cancelled. FailedPrecondition: an operator has no kernel, or runs of the
    network cannot be recorded.
    ResourceExhausted: no memory. InvalidModel: the model is at fault. Internal: any other error.
    """
    kind, text = type(error).__name__, readable(error)
    if kind == "ModelLoadCanceled":
        return Cancelled("loading the network was cancelled")
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return ResourceExhausted(f"no memory for the network: {text}")
    if kind == "NotImplemented" or _NOT_RECORDABLE in text:
        return FailedPrecondition(REFUSED + text, field="model")
    if kind in _BAD_MODEL:
        return InvalidModel(REFUSED + text, field="model")
    return Internal(REFUSED + text)


def run_failure(error: Exception) -> Exception:
    """The error to raise for an error that a run raised.

    InvalidArgument: the inputs do not fit the network, or a layer does not take the values it got.
    FailedPrecondition: a layer turns out not to be supported. ResourceExhausted: no memory.
    Internal: one of the GPU's libraries failed, in any layer. Returns any other error unchanged.
    """
    if isinstance(error, HeadraceError):
        return error
    kind, text = type(error).__name__, readable(error)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return ResourceExhausted(f"no memory for the request: {text}")
    if _GPU.search(text):
        return Internal(f"the GPU failed: {_PLACE.sub('', text)}")
    if kind == "NotImplemented":
        return FailedPrecondition(f"the device does not support this inference: {text}")
    if (most := _RANK.search(text)) is not None:
        return InvalidArgument(
            f"with these inputs, an output would have more than {most[1]} axes", field="inputs"
        )
    if isinstance(error, ValueError) and _SHAPE.search(text):
        return InvalidArgument(
            "with these inputs, an output would have a shape that is too large", field="inputs"
        )
    if kind == "InvalidArgument" or isinstance(error, RuntimeError):
        return InvalidArgument(f"the network does not take these inputs: {text}", field="inputs")
    if _KERNEL.search(str(error)):
        return InvalidArgument(f"the network does not take these values: {text}", field="inputs")
    return error


def readable(error: Exception) -> str:
    """The error's text without codes, paths and signatures. It names the layer, if one failed."""
    text = _CODE.sub("", str(error).strip())
    kernel = _KERNEL.search(text)
    while kernel is not None and (inner := _KERNEL.search(kernel["why"])) is not None:
        kernel = inner  # a layer in a body says more than the layer that holds the body
    if kernel is not None:
        layer, guarded, rest = kernel["layer"].partition(guard_reasons.SUFFIX)
        if guarded:
            return f"layer {layer!r}: {guard_reasons.reason(rest)}"
        why = _without_location(kernel["why"])
        return f"layer {kernel['layer']!r} ({kernel['op']}): {why}"
    return _without_location(text)


def _without_location(text: str) -> str:
    """Drops the ``file:line signature`` that ONNX Runtime's checks put in front of a message."""
    text = " ".join(text.split())
    while (location := _LOCATION.match(text)) is not None:
        rest = text[location.end() :]
        end = _signature_end(rest)
        rest = rest[end:].strip()
        if not rest:
            return text
        text = rest
    return _NODE.sub("", _SHORT_LOCATION.sub("", text)).rstrip(".")


def _signature_end(text: str) -> int:
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == ")" and depth == 0:
            if text.startswith("()", position - 1) and text[: position - 1].endswith("operator"):
                continue
            tail = _SIGNATURE_END.match(text, position + 1)
            return tail.end() if tail is not None else position + 1
    return 0
