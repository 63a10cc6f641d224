"""The memory of an infer request's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.openvino.backend import tensors
from headrace.plugins.openvino.library import openvino
from headrace.runtime.errors import Internal, InvalidArgument
from headrace.runtime.network.values import Array, Value

LARGE_BYTES: Final = 16384
"""Arrays of this size or larger are passed as they lie. Smaller outputs are copied. So are smaller
inputs that are read-only, as those of a message are: to pass such an array takes longer."""


@dataclass(frozen=True, slots=True)
class CompiledPort:
    """One of the compiled network's inputs or outputs.

    Attributes:
        name: name of the network's own port.
        index: index among the compiled network's inputs or outputs.
        shape: the shape that it has in every run.
        bounded: the port is an input whose integers must stay within the compilation's bound.
    """

    name: str
    index: int
    dtype: ir.DataType
    shape: tuple[int, ...]
    bounded: bool = False

    @property
    def is_large(self) -> bool:
        return prod(self.shape) * self.dtype.numpy().itemsize >= LARGE_BYTES


class RequestMemory:
    """Passes a job's arrays to an infer request and out of it. Belongs to the thread that runs it.

    No array that it returns lies in memory of the compiled network, which may be dropped.

    Args:
        bound: as in `core.Converted`.
    """

    def __init__(
        self,
        request: openvino.InferRequest,
        inputs: Sequence[CompiledPort],
        outputs: Sequence[CompiledPort],
        bound: int,
    ) -> None:
        self._request = request
        self._inputs = inputs
        self._outputs = [(port, port.is_large) for port in outputs]
        self._bound = bound
        self._small: dict[str, Array] = {}  # inputs, which keep their memory

    def set_inputs(self, values: Mapping[str, Value]) -> list[Array]:
        """Sets the inputs. Returns the arrays that must stay alive until the run has ended, because
        OpenVINO does not keep them alive.

        Raises:
            InvalidArgument: an integer is beyond the bound.
        """
        kept = []
        for port in self._inputs:
            given = values[port.name]
            assert isinstance(given, np.ndarray), "a network with other values does not load"
            if port.bounded and (given.max() > self._bound or given.min() < -self._bound):
                raise InvalidArgument(
                    f"input {port.name!r} holds integers beyond {self._bound:,}, which this device "
                    f"does not compute exactly; let another one run the network",
                    field=f"inputs[{port.name!r}]",
                )
            small = given.nbytes < LARGE_BYTES and not given.flags.writeable
            own = self._small.get(port.name) if small else None
            if own is not None:
                np.copyto(own, given)
                continue
            array = np.array(given, port.dtype.numpy(), order="C") if small else given
            try:
                tensor, array = tensors.tensor(array, port.dtype)
            except RuntimeError as error:  # the caller's array was checked before
                raise Internal(f"input {port.name!r} cannot be passed to OpenVINO") from error
            self._request.set_input_tensor(port.index, tensor)
            if small:
                self._small[port.name] = array
            else:
                self._small.pop(port.name, None)
                kept.append(array)
        return kept

    def give(self, room: Mapping[str, Array], fill: int | None = None) -> dict[str, Array]:
        """Gives large outputs memory that the caller then gets without a copy. Returns it. Outputs
        that the caller does not want get new memory too, because the last run's memory belongs to
        the last job.

        Args:
            room: memory that an output may lie in, by name.
            fill: a byte that new memory is filled with.
        """
        given = {}
        for port, is_large in self._outputs:
            if not is_large:
                continue
            array, dtype = room.get(port.name), port.dtype.numpy()
            if array is None or array.shape != port.shape or array.dtype != dtype:
                array = np.empty(port.shape, dtype)
                if fill is not None:
                    array.view(np.uint8).fill(fill)
            tensor, _ = tensors.tensor(array, port.dtype)
            self._request.set_output_tensor(port.index, tensor)
            given[port.name] = array
        return given

    def take(self, names: Sequence[str], given: Mapping[str, Array]) -> dict[str, Value]:
        """The outputs with these names.

        Args:
            given: from `give`.
        """
        taken: dict[str, Value] = {}
        for port, is_large in self._outputs:
            if port.name in names:
                tensor = None if is_large else self._request.get_output_tensor(port.index)
                taken[port.name] = (
                    given[port.name] if tensor is None else tensors.array(tensor, port.dtype).copy()
                )
        return taken
