"""What a user passes as inputs → values for the wire, checked against the network's ports.

Arrays must have the port's own type: silently converting a float64 array to float32 on each call
costs time and hides mistakes. Python numbers and lists have no type of their own. They take the
port's type if that changes no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from headrace.client.errors import (
    InvalidArgument,
    did_you_mean,
    failed_to_load,
    invalid,
    still_loading,
)
from headrace.client.info import NetworkInfo, Port, Ports
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import codec, dtypes, message
from headrace.wire.reply import MAX_NAME_LENGTH, tensor_head

_INPUTS: Final = 3  # of InferRequest
_MAX_HEADS: Final = 64
_KIND_ORDER = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


class RequestEncoder:
    """Makes InferRequests for one network. Thread-safe: it only remembers bytes that are always the
    same.

    Args:
        version: the version that the requests ask for; empty for the one that serves.
    """

    def __init__(self, network: NetworkInfo, version: str = "") -> None:
        self._network = network.name
        self._version = version
        self._state, self._reason = network.state, network.reason
        self.has_states = bool(network.states)
        self._output_names = network.outputs.names
        self._ports = {port.name: _PortEncoder(port) for port in network.inputs}
        self._required = frozenset(_required_names(network.inputs))
        self._is_plain = self._state == "READY" and not self.has_states
        self._begin = pb.InferRequest(network=self._network).SerializeToString()
        self._end = pb.InferRequest(version=version).SerializeToString()
        # What lies before the data of an array of this name, type and shape, which fits its input.
        self._heads: dict[tuple[str, np.dtype[Any], tuple[int, ...]], bytes] = {}

    def encode_small(self, inputs: Mapping[str, Any]) -> bytes | None:
        """A serialised request of small numeric arrays without options. None for any other, which
        `encode` takes.

        Raises:
            InvalidArgument: as `encode`.
        """
        if not self._is_plain or type(inputs) is not dict or not inputs.keys() >= self._required:
            return None
        parts = [self._begin]
        for name, value in inputs.items():
            if type(value) is not np.ndarray:
                return None
            head = self._heads.get((name, value.dtype, value.shape))
            if head is None:
                head = self._head(name, value)
                if head is None:
                    return None
            parts += (head, value.tobytes())
        parts.append(self._end)
        return b"".join(parts)

    def _head(self, name: str, value: codec.Array) -> bytes | None:
        """What lies before the data of an array, which is checked first."""
        if name not in self._ports or value.nbytes > codec.ATTACHMENT_BYTES:
            return None
        if len(name) > MAX_NAME_LENGTH:
            return None
        self._convert(name, value)
        head = tensor_head(_INPUTS, name, value.dtype, value.shape)
        if head is not None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[name, value.dtype, value.shape] = head
        return head

    def encode(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        performance_counts: bool = False,
        timeout_seconds: float = 0.0,
        identifier: str = "",
        session: pb.Session | None = None,
    ) -> tuple[pb.InferRequest, list[codec.Buffer]]:
        """A request and its attachments, which are views of the arrays passed in.

        Raises:
            InvalidArgument: an input or output does not fit the network.
            FailedPrecondition: the network's inputs are unknown, because it was loading when it
                was looked up, or had failed to load.
        """
        self.check_usable()
        if self.has_states and session is None:
            raise invalid(
                "session",
                f"network {self._network!r} keeps states between requests; use network.session()",
            )
        request = pb.InferRequest(
            network=self._network, id=identifier, session=session, version=self._version
        )
        attachments: list[codec.Buffer] = []
        untrusted: object = inputs
        if not isinstance(untrusted, Mapping):
            kind = type(untrusted).__name__
            raise invalid("inputs", f"inputs is a {kind}; pass a dictionary of arrays by name")
        values = {name: self._convert(name, value) for name, value in inputs.items()}
        missing = self._required - values.keys()
        if missing:
            first, *others = sorted(missing)
            names = f"s {', '.join([first, *others])} are" if others else f" {first} is"
            raise invalid(f"inputs[{first!r}]", f"input{names} missing")
        try:
            codec.encode_values(values, request.inputs, attachments, "inputs")
        except codec.CodecError as error:
            raise invalid(error.field, str(error)) from error
        if outputs:
            self._check_outputs(outputs)
            request.outputs.extend(outputs)
        if priority:
            if not isinstance(priority, int | np.integer) or not -10 <= priority <= 10:
                message = f"priority is {priority!r}; pass a whole number from -10 to 10"
                raise invalid("priority", message)
            request.priority = priority
        if performance_counts:
            request.performance_counts = True
        if timeout_seconds:
            request.timeout_seconds = timeout_seconds
        return request, attachments

    def check_usable(self) -> None:
        """
        Raises:
            FailedPrecondition: the network was loading when it was looked up, or had failed.
        """
        if self._state == "LOADING":
            raise still_loading(self._network)
        if self._state == "FAILED":
            raise failed_to_load(self._network, self._reason)

    def encode_bytes(self, inputs: Mapping[str, Any], **options: Any) -> bytes:
        """A serialised request; the arrays passed in may change afterwards."""
        return message.serialize(*self.encode(inputs, **options))

    def _convert(self, name: str, value: Any) -> codec.Value:
        port = self._ports.get(name)
        if port is None:
            hint = did_you_mean(name, self._ports)
            raise invalid(f"inputs[{name!r}]", f"the network has no input {name!r}{hint}")
        return port.convert(value)

    def _check_outputs(self, outputs: Sequence[str]) -> None:
        if isinstance(outputs, str):
            raise invalid("outputs", f"outputs is the text {outputs!r}; pass a list of names")
        for name in outputs:
            if name not in self._output_names:
                hint = did_you_mean(name, self._output_names)
                raise invalid("outputs", f"the network has no output {name!r}{hint}")


def _required_names(ports: Ports) -> list[str]:
    return [port.name for port in ports if not port.optional]


class _PortEncoder:
    """Converts and checks values for one input."""

    __slots__ = ("_dtype", "_path", "_port")

    def __init__(self, port: Port) -> None:
        self._port = port
        self._path = f"inputs[{port.name!r}]"
        self._dtype: np.dtype[Any] | None = (
            None if port.dtype == "unknown" else dtypes.numpy_type(dtypes.parse_name(port.dtype))
        )

    def convert(self, value: Any) -> codec.Value:
        port = self._port
        if value is None:
            if not port.optional:
                raise invalid(self._path, f"{self._path} is None, but the input is not optional")
            return None
        if port.kind == "tensor":
            return self._tensor(value, self._path)
        if not isinstance(value, list | tuple):
            kind = type(value).__name__
            raise invalid(self._path, f"{self._path} is a {kind}; the input takes a list of arrays")
        return [
            self._tensor(element, f"{self._path}[{index}]") for index, element in enumerate(value)
        ]

    def _tensor(self, value: Any, path: str) -> codec.Array:
        if isinstance(value, np.ndarray):
            array = value
        elif hasattr(value, "__array__"):  # NumPy scalars, tensors of other libraries
            array = np.asarray(value)
        else:
            array = self._from_python(value, path)
        self._check_dtype(array, path)
        self._check_shape(array, path)
        return array

    def _check_dtype(self, array: codec.Array, path: str) -> None:
        wanted = self._dtype
        if wanted is None or array.dtype == wanted:
            return
        try:
            matches = dtypes.numpy_type(dtypes.number_of(array.dtype)) == wanted
        except ValueError:
            matches = False
        if matches:  # the other byte order, or text of another NumPy type
            return
        name = self._port.dtype
        if name == "string":
            remedy = f"pass {path}.astype(object) with elements of type str"
        elif array.dtype.kind in "OSUT":
            remedy = f"pass an array of {name}"
        else:
            module = "np" if wanted.isbuiltin == 1 else "ml_dtypes"
            type_name = wanted.type.__name__
            remedy = (
                f"pass {path}.astype({module}.{type_name}), or load the network with "
                f"preprocessing={{{self._port.name!r}: {{'dtype': '{array.dtype}'}}}}"
            )
        raise invalid(
            f"{path}.dtype", f"{path} is {array.dtype}, the network takes {name}: {remedy}"
        )

    def _check_shape(self, array: codec.Array, path: str) -> None:
        expected = self._port.shape
        if expected is None or self._port.kind == "sequence":
            return
        shape = array.shape
        if len(shape) == len(expected) and all(
            size == wanted or not isinstance(wanted, int)
            for size, wanted in zip(shape, expected, strict=True)
        ):
            return
        text = ", ".join("?" if size is None else str(size) for size in expected)
        hint = ""
        if len(shape) + 1 == len(expected):
            hint = "; add the batch dimension with array[np.newaxis]"
        raise invalid(
            f"{path}.shape", f"{path} has shape {shape}, the network takes ({text}){hint}"
        )

    def _from_python(self, value: Any, path: str) -> codec.Array:
        """An array of the port's type from numbers, text, or lists of them."""
        wanted = self._dtype
        try:
            if wanted is None or wanted.kind == "O":
                return np.array(value, dtype=wanted)
            natural = np.array(value)
        except (ValueError, TypeError) as error:
            raise invalid(path, f"{path} is not an array: {error}") from None
        if natural.size == 0:
            return natural.astype(wanted)
        target_order = _kind_order(wanted)
        order = _KIND_ORDER.get(natural.dtype.kind)
        if order is None or order > target_order:
            raise self._lossy(path, natural)
        with np.errstate(all="ignore"):  # overflows are found below
            converted = natural.astype(wanted)
        if target_order == 1 and not np.array_equal(
            converted.astype(object), natural.astype(object)
        ):
            raise self._lossy(path, natural)
        return converted

    def _lossy(self, path: str, natural: codec.Array) -> InvalidArgument:
        kind, dtype = natural.dtype.kind, self._port.dtype
        if kind not in _KIND_ORDER:
            what = "text" if kind in "US" else "values that are not numbers"
            return invalid(path, f"{path} holds {what}, and the network takes {dtype}")
        return invalid(
            path, f"{path} holds {natural.dtype}, which do not all fit the network's {dtype}"
        )


def _kind_order(dtype: np.dtype[Any]) -> int:
    order = _KIND_ORDER.get(dtype.kind)
    if order is not None:
        return order
    return 1 if "int" in dtype.name else 2  # ml_dtypes' own, all of kind V
