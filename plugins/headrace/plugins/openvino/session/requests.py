"""Infer requests that are reused. Each works for one job at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.openvino.failures import NATIVE, REFUSED, run_failure
from headrace.plugins.openvino.graph.checkpoint import Checkpoints
from headrace.plugins.openvino.guards.guards import Guards
from headrace.plugins.openvino.guards.shapes import Shapes
from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.session import tensors
from headrace.runtime.errors import Internal, InvalidArgument, InvalidModel
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network
from headrace.runtime.network.network import Port as NetworkPort
from headrace.runtime.network.values import Array, Value

_WIDE: Final = (ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.UINT32)
_INT32: Final = np.iinfo(np.int32)
_LARGE_BYTES: Final = 16384
"""Outputs of this size or larger get their own memory for each job. Smaller ones are copied."""


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


@dataclass(frozen=True, slots=True)
class Compiled:
    """A network as OpenVINO has compiled it.

    Attributes:
        checkpoints: the checkpoints of the network's loops; None if it has none.
        guards: the network's guards; None if it has none.
        several: the network has more than one stream.
        shapes: checks requests before a run; None while no run has failed.
    """

    model: openvino.CompiledModel
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    checkpoints: Checkpoints | None
    guards: Guards | None
    several: bool
    shapes: Shapes | None = None


def bind(
    network: Network, model: openvino.CompiledModel, checkpoints: Checkpoints | None
) -> Compiled:
    """Finds the network's inputs and outputs in its compiled model.

    Outputs have the same order in both. The compiled model lacks an input that nothing reads. An
    input that is passed on under another name may have lost its own name. The inputs that are not
    found by name have the same order in both.

    Raises:
        Internal: the inputs of the network and of the compiled model cannot be matched.
        InvalidModel: an output has another type or shape than the network says.
    """
    guards = Guards.of(model)
    own = model.outputs if guards is None else model.outputs[: guards.index]
    if len(own) != len(network.outputs):
        counts = f"{len(network.outputs)} outputs the compiled network has {len(own)}"
        raise Internal(f"of {counts}")
    for port, found in zip(network.outputs, own, strict=True):
        _check_type(port, found.element_type)
        _check_shape(port, found.partial_shape)
    outputs = tuple(
        Port(port.name, index, port.dtype, _fixed(port.dtype, found))
        for index, (port, found) in enumerate(zip(network.outputs, own, strict=True))
    )
    known = {name: index for index, port in enumerate(model.inputs) for name in port.get_names()}
    values = network.model.graph.inputs
    read = {value.name for value in values if value.uses() or value.is_graph_output()}
    wanted = [port for port in network.inputs if port.name in read]
    named = {port.name: known[port.name] for port in wanted if port.name in known}
    ours = {known[checkpoints.port]} if checkpoints is not None else set()
    left = [index for index in range(len(model.inputs)) if index not in {*named.values(), *ours}]
    unnamed = [port.name for port in wanted if port.name not in named]
    if left:
        if len(left) != len(unnamed):
            raise Internal(f"it cannot be told which inputs are {', '.join(unnamed)}")
        named |= zip(unnamed, left, strict=True)
    bounds = {value.name for value in values if _only_bounds_slices(value)}
    inputs = (
        Port(port.name, named[port.name], port.dtype, None, port.name in bounds)
        for port in wanted
        if port.name in named
    )
    several = int(model.get_property("NUM_STREAMS")) > 1
    return Compiled(model, tuple(inputs), outputs, checkpoints, guards, several)


def _check_type(port: NetworkPort, found: openvino.Type) -> None:
    """
    Raises:
        InvalidModel: the type found is not the output's type.
    """
    if found != tensors.element_type(port.dtype):
        said = port.dtype.name.lower()
        raise InvalidModel(
            f"{REFUSED}output {port.name!r} would have elements of {found.get_type_name()}, where "
            f"the network says {said}",
            field="model",
        )


def _check_shape(port: NetworkPort, found: openvino.PartialShape) -> None:
    """
    Raises:
        InvalidModel: a rank or size that is known on both sides differs.
    """
    if port.shape is None or found.rank.is_dynamic:
        return
    sizes = [None if each.is_dynamic else each.get_length() for each in found]
    pairs = zip(port.shape, sizes, strict=False)
    known = (pair for pair in pairs if isinstance(pair[0], int) and pair[1] is not None)
    if len(sizes) != len(port.shape) or any(ours != theirs for ours, theirs in known):
        raise InvalidModel(
            f"{REFUSED}output {port.name!r} would have the shape {found}, where the network says "
            f"[{','.join('?' if each is None else str(each) for each in port.shape)}]",
            field="model",
        )


def _only_bounds_slices(value: ir.Value) -> bool:
    uses = value.uses()
    slices = all(node.op_type == "Slice" and at in (1, 2, 4) for node, at in uses)
    return slices and bool(uses) and not value.is_graph_output()


def _fixed(dtype: ir.DataType, output: openvino.ConstOutput) -> tuple[int, ...] | None:
    if output.partial_shape.is_dynamic:
        return None
    shape = tuple(output.shape)
    large = prod(shape) * dtype.numpy().itemsize >= _LARGE_BYTES
    return shape if large else None


class Request:
    """One infer request. One thread runs it at a time. `_lock` guards `_job` against the thread
    that cancels a job. That thread may be late, and the request may work for another job by then.

    Args:
        number: number of this request among the network's requests, from 0.
    """

    def __init__(self, compiled: Compiled, number: int) -> None:
        self._request = compiled.model.create_infer_request()
        self._inputs = compiled.inputs
        self._outputs = compiled.outputs
        self._checkpoints = compiled.checkpoints
        self._guards = compiled.guards
        self._number = number
        self._synchronous = compiled.several
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._failed = False
        if compiled.checkpoints is not None:
            compiled.checkpoints.jobs.append(None)
            own = openvino.Tensor(np.array([number], np.int32), shared_memory=False)
            self._request.set_tensor(compiled.checkpoints.port, own)

    def run(self, job: Job) -> dict[str, Value]:
        """Runs the job and returns its outputs.

        Raises:
            HeadraceError: see `failures.run_failure`. If the job was cancelled, any error.
        """
        try:
            kept = self._set_inputs(job.inputs)
            given = self._give_memory(job.room or {})
            self._compute(job)
            del kept  # the backend reads these arrays until here
            if self._guards is not None:
                found = self._request.get_output_tensor(self._guards.index)
                self._guards.check(found.data, job.inputs)
            return self._take_outputs(job.output_names, given)
        except Exception as error:
            failure = run_failure(error)
            if failure is error:
                raise
            raise failure from error

    def has_failed(self) -> bool:
        """Whether a run has failed, even if the thread that waits for it has not noticed yet. Any
        thread may call it."""
        job = self._job
        if self._failed or job is None or job.token.error is not None:
            return self._failed
        try:
            self._request.wait_for(0)
        except NATIVE:
            return job.token.error is None  # if there is an error, the job was cancelled just now
        return False

    def profile(self) -> list[openvino.ProfilingInfo]:
        """The cost of each operation of the last run."""
        return list(self._request.profiling_info)

    def _compute(self, job: Job) -> None:
        self._hold(job)
        cancel = partial(self._cancel, job)
        try:
            if self._synchronous:
                job.token.attach(cancel)
                if job.token.error is not None:
                    raise job.token.error
                # A cancel or timeout between these two lines has no effect on OpenVINO. The run
                # then continues to its end, or to a loop's next checkpoint.
                self._request.infer(share_inputs=True, share_outputs=True)
            else:
                self._request.start_async(share_inputs=True)
                job.token.attach(cancel)  # cancels at once if the token was cancelled before
                self._request.wait()
        except NATIVE:
            # This comes before the request looks idle.
            self._failed = self._failed or job.token.error is None
            raise
        finally:
            job.token.detach(cancel)
            self._hold(None)

    def _hold(self, job: Job | None) -> None:
        with self._lock:
            self._job = job
        if self._checkpoints is not None:
            self._checkpoints.jobs[self._number] = job

    def _cancel(self, job: Job) -> None:
        with self._lock:
            if self._job is job:
                self._request.cancel()

    def _set_inputs(self, values: Mapping[str, Value]) -> list[Array]:
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
            try:
                tensor, array = tensors.tensor(given, port.dtype)
            except RuntimeError as error:  # the caller's array was checked before
                raise Internal(f"input {port.name!r} cannot be passed to OpenVINO") from error
            self._request.set_input_tensor(port.index, tensor)
            kept.append(array)
        return kept

    def _give_memory(self, room: Mapping[str, Array]) -> dict[str, Array]:
        """Gives each large output memory that the caller then gets without a copy: the job's room,
        or new memory. Outputs that the caller does not want get new memory too, because the last
        run's memory belongs to the last job."""
        given = {}
        for port in self._outputs:
            if port.fixed is not None:
                array, dtype = room.get(port.name), port.dtype.numpy()
                if array is None or array.shape != port.fixed or array.dtype != dtype:
                    array = np.empty(port.fixed, dtype)
                tensor, _ = tensors.tensor(array, port.dtype)
                self._request.set_output_tensor(port.index, tensor)
                given[port.name] = array
        return given

    def _take_outputs(self, names: Sequence[str], given: Mapping[str, Array]) -> dict[str, Value]:
        taken: dict[str, Value] = {}
        for port in self._outputs:
            if port.name not in names:
                continue
            if port.name in given:
                taken[port.name] = given[port.name]
                continue
            tensor = self._request.get_output_tensor(port.index)
            array = tensors.array(tensor, port.dtype)
            if array.nbytes < _LARGE_BYTES:
                array = array.copy()
            else:  # the request gets another tensor, because the array keeps this one
                empty = openvino.Tensor(tensor.element_type, openvino.Shape([0] * array.ndim))
                self._request.set_output_tensor(port.index, empty)
            taken[port.name] = array
        return taken


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
