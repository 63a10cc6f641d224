"""The memory of an infer request's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.session import tensors
from headrace.runtime.errors import Internal, InvalidArgument
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Array, Value

_WIDE: Final = (ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.UINT32)
_INT32: Final = np.iinfo(np.int32)
LARGE_BYTES: Final = 16384
"""Arrays of this size or larger are passed as they lie. Smaller outputs are copied. So are smaller
inputs that are read-only, as those of a message are: to pass such an array takes longer."""


@dataclass(frozen=True, slots=True)
class Port:
    """One of the compiled network's inputs or outputs.

    Attributes:
        name: name of the network's own port.
        index: index among the compiled network's inputs or outputs.
        fixed: the shape of a large output that has the same shape in every run.
        bounds: the port is an input that holds only bounds of slices.
    """

    name: str
    index: int
    dtype: ir.DataType
    fixed: tuple[int, ...] | None
    bounds: bool = False


class Memory:
    """Passes a job's arrays to an infer request and out of it. Belongs to the thread that runs it.

    Args:
        steady: inputs of the same shapes give outputs of the same shapes.
    """

    def __init__(
        self,
        request: openvino.InferRequest,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        steady: bool,
    ) -> None:
        self._request = request
        self._inputs = inputs
        self._outputs = outputs
        self._steady = steady
        self._small: dict[str, Array] = {}  # inputs, which keep their memory
        self._shapes: list[tuple[int, ...]] | None = None  # of the last inputs, if a job had room
        self._likely: dict[str, tuple[int, ...]] = {}  # shapes of outputs for these inputs
        self._lent: set[str] = set()  # outputs without fixed shapes that lie in a job's room

    def set_inputs(self, values: Mapping[str, Value]) -> list[Array]:
        """Sets the inputs. Returns the arrays that must stay alive until the run has ended, because
        OpenVINO does not keep them alive."""
        kept = []
        for port in self._inputs:
            given = values[port.name]
            assert isinstance(given, np.ndarray), "a network with other values does not load"
            if port.bounds:  # the nearest bound that fits has the same effect: wide_integers
                given = np.clip(given, _INT32.min, _INT32.max)
            elif port.dtype in _WIDE:
                _check_narrow(port.name, given)
            small = given.nbytes < LARGE_BYTES and not given.flags.writeable
            own = self._small.get(port.name) if small else None
            if own is not None and own.shape == given.shape:
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

    def give(self, job: Job) -> dict[str, Array]:
        """Gives large outputs memory that the caller then gets without a copy. Returns it.

        It is the job's room if that certainly has the right shape, or new memory if the shape is
        fixed. Outputs that the caller does not want get new memory too, because the last run's
        memory belongs to the last job.
        """
        given = {}
        room = job.room or {}
        self._expect(job.inputs if room and self._steady else None)
        for port in self._outputs:
            array, dtype = room.get(port.name), port.dtype.numpy()
            shape = port.fixed or self._likely.get(port.name)
            if array is None or array.shape != shape or array.dtype != dtype:
                if port.fixed is None:
                    if port.name in self._lent:
                        self._let_go(port)
                    continue
                array = np.empty(port.fixed, dtype)
            tensor, _ = tensors.tensor(array, port.dtype)
            self._request.set_output_tensor(port.index, tensor)
            given[port.name] = array
            if port.fixed is None:
                self._lent.add(port.name)
        return given

    def take(self, names: Sequence[str], given: Mapping[str, Array]) -> dict[str, Value]:
        """The outputs with these names.

        Args:
            given: from `give`.
        """
        taken: dict[str, Value] = {}
        for port in self._outputs:
            if port.name not in names:
                continue
            if port.fixed is not None:
                taken[port.name] = given[port.name]
                continue
            array = tensors.array(self._request.get_output_tensor(port.index), port.dtype)
            if port.name in given:
                if array.shape != given[port.name].shape:
                    raise Internal(f"output {port.name!r} has another shape than it must have")
                taken[port.name] = given[port.name]
                continue
            if array.nbytes < LARGE_BYTES:
                array = array.copy()
            else:
                self._let_go(port)  # because the array keeps the tensor
                if self._shapes is not None:
                    self._likely[port.name] = array.shape
            taken[port.name] = array
        return taken

    def _expect(self, inputs: Mapping[str, Value] | None) -> None:
        """Forgets what shapes the outputs are likely to have, unless the inputs have the shapes of
        the last ones."""
        shapes = None
        if inputs is not None:
            shapes = [np.shape(inputs[port.name]) for port in self._inputs]  # type: ignore[arg-type]
        if shapes is None or shapes != self._shapes:
            self._shapes, self._likely = shapes, {}

    def _let_go(self, port: Port) -> None:
        """Gives the request another tensor for an output."""
        rank = len(self._request.get_output_tensor(port.index).shape)
        empty = openvino.Tensor(tensors.element_type(port.dtype), openvino.Shape([0] * rank))
        self._request.set_output_tensor(port.index, empty)
        self._lent.discard(port.name)


def _check_narrow(name: str, array: Array) -> None:
    """
    Raises:
        InvalidArgument: an integer does not fit in 32 bits, in which OpenVINO computes integers.
    """
    if array.size and (array.max() > _INT32.max or array.min() < _INT32.min):
        raise InvalidArgument(
            f"input {name!r} holds integers beyond int32, in which this device computes; let "
            f"another one run the network",
            field=f"inputs[{name!r}]",
        )
