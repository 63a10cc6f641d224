"""What ONNX Runtime has and a session on a server has not. Using it raises NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

_MEMORY: Final = "memory of devices is the server's; pass arrays to run()"
_TUNING: Final = "the server sets up its devices; pass config= to InferenceSession"
_PROFILE: Final = (
    "the server measures layers; use headrace.client.Client and infer(performance_counts=True)"
)

METHODS: Final = {
    "create_ortvalue_from_shape_and_type": _MEMORY,
    "end_profiling": _PROFILE,
    "get_input_epdevices": _MEMORY,
    "get_input_memory_infos": _MEMORY,
    "get_output_memory_infos": _MEMORY,
    "get_profiling_start_time_ns": _PROFILE,
    "get_provider_graph_assignment_info": _PROFILE,
    "get_tuning_results": _TUNING,
    "io_binding": _MEMORY,
    "release_captured_graph": _MEMORY,
    "run_with_iobinding": _MEMORY,
    "run_with_ort_values": _MEMORY,
    "run_with_ortvaluevector": _MEMORY,
    "set_ep_dynamic_options": _TUNING,
    "set_tuning_results": _TUNING,
}
"""The methods of InferenceSession that are refused, and why."""


def refuse(name: str, reason: str) -> NoReturn:
    """
    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"{name} does not work on a server: {reason}")


def refusing(name: str, reason: str) -> Callable[..., NoReturn]:
    """A method that is refused when it is called."""

    def method(*_: object, **__: object) -> NoReturn:
        refuse(name, reason)

    method.__name__ = name.rpartition(".")[2]
    method.__doc__ = f"Raises NotImplementedError: {reason}."
    return method


class _Refusing(type):
    """The type of classes that can be named, for example in isinstance(), and not be used."""

    reason = _MEMORY

    def __call__(cls, *_: object, **__: object) -> NoReturn:
        refuse(cls.__name__, cls.reason)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"{cls.__name__}.{name}", cls.reason)


class OrtValue(metaclass=_Refusing):
    """A tensor in the memory of a device."""


class OrtDevice(metaclass=_Refusing):
    """A device of this machine."""


class OrtMemoryInfo(metaclass=_Refusing):
    """A kind of memory."""


class IOBinding(metaclass=_Refusing):
    """Inputs and outputs in the memory of devices."""


class SparseTensor(metaclass=_Refusing):
    """A tensor that is mostly zeros."""

    reason = "the protocol has no sparse tensors; pass arrays to run()"


class LoraAdapter(metaclass=_Refusing):
    """Weights that are added to a network's."""

    reason = "put the weights into the network"


class ModelCompiler(metaclass=_Refusing):
    """Compiles a network ahead of time."""

    reason = "the server compiles and caches networks; use Network.export() for a compiled one"
