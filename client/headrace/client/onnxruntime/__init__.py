"""The names of ONNX Runtime's Python package, for programs that are to run on a server:

    import headrace.client.onnxruntime as onnxruntime

`InferenceSession` runs networks on the server that HEADRACE_SERVER names. Everything else is there
so that such programs, and the libraries that they use, are imported and go on as before. What a
server cannot do raises NotImplementedError.
"""

from __future__ import annotations

from headrace.client.onnxruntime.description import ModelMetadata, NodeArg
from headrace.client.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from headrace.client.onnxruntime.refusals import (
    IOBinding,
    LoraAdapter,
    ModelCompiler,
    OrtDevice,
    OrtMemoryInfo,
    OrtValue,
    SparseTensor,
)
from headrace.client.onnxruntime.session import CPU_PROVIDER, InferenceSession

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LoraAdapter",
    "ModelCompiler",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtMemoryInfo",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "SparseTensor",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

__version__ = "1.31.0"  # the interface is that of this version of ONNX Runtime


def get_available_providers() -> list[str]:
    """The provider that a program may name. Whichever it names, `InferenceSession` chooses the
    server's device."""
    return [CPU_PROVIDER]


def get_all_providers() -> list[str]:
    return get_available_providers()


def get_device() -> str:
    """What programs ask to learn whether to use CUDA: no, the server knows."""
    return "CPU"


def get_version_string() -> str:
    return __version__


def get_build_info() -> str:
    return "headrace"


def has_collective_ops() -> bool:
    return False


def preload_dlls(*_: object, **__: object) -> None:
    """Does nothing: the server has the libraries."""


def set_seed(seed: int) -> None:
    """Does nothing: the server's operators have seeds of their own."""


def set_default_logger_severity(severity: int) -> None:
    """Does nothing: the server has a log of its own."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Does nothing: the server has a log of its own."""


def disable_telemetry_events() -> None:
    """Does nothing: this client reports nothing."""


def enable_telemetry_events() -> None:
    """Does nothing: this client reports nothing."""
