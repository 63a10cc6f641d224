"""Infer requests that are used again and again, each by one job at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.openvino.failures import REFUSED, run_failure
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
"""Outputs from here on get memory of their own for each job; smaller ones are copied."""


@dataclass(frozen=True, slots=True)
class Port:
    """One of the compiled network's inputs or outputs.

    Attributes:
        name: of the network's own port.
        index: among the compiled network's.
        fixed: the shape of a large output that has the same one in every run.
        bounds: an input that holds nothing but bounds of slices.
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
        checkpoints: of its loops; None if it has none.
        guards: None if it has none.
        several: it has more than one stream.
        shapes: judges requests before a run; None while no run has failed.
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
    """Finds the network's inputs and outputs in what was compiled of it.

    Outputs are in the same order. An input that nothing reads is not there, and one that is passed
    on under another name may have lost its own: what is left on both sides is in the same order.

    Raises:
        Internal: it cannot be told which input is which.
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
        InvalidModel: it is not the output's.
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
        InvalidModel: a rank or size that is known on both sides is not the same.
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
    """One infer request. Run by one thread at a time; `_lock` guards `_job` against the thread that
    cancels it, which may be late: by then the request may work for another job.

    Args:
        number: of the network's requests, from 0.
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
        """The job's outputs.

        Raises:
            HeadraceError: as `failures.run_failure` has it; anything if the job was cancelled.
        """
        try:
            kept = self._set_inputs(job.inputs)
            given = self._give_memory()
            self._compute(job)
            del kept  # only now has the backend let go of them
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
        """Whether a run has failed, even if the thread that waits for it has not noticed yet. May
        be asked on any thread."""
        job = self._job
        if self._failed or job is None or job.token.error is not None:
            return self._failed
        try:
            self._request.wait_for(0)
        except RuntimeError:
            return job.token.error is None  # or it was cancelled just now
        return False

    def profile(self) -> list[openvino.ProfilingInfo]:
        """What each operation of the last run cost."""
        return list(self._request.profiling_info)

    def _compute(self, job: Job) -> None:
        self._hold(job)
        cancel = partial(self._cancel, job)
        try:
            if self._synchronous:
                job.token.attach(cancel)
                if job.token.error is not None:
                    raise job.token.error
                # A cancel between these two lines, a timeout's too, is not heard: the run goes to
                # its end then, or to a loop's next checkpoint.
                self._request.infer(share_inputs=True, share_outputs=True)
            else:
                self._request.start_async(share_inputs=True)
                job.token.attach(cancel)  # from now on it is heard; if it came before, at once
                self._request.wait()
        except RuntimeError:
            self._failed = self._failed or job.token.error is None  # before it looks idle
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
        """What must stay alive until the run has ended, for OpenVINO does not see to it."""
        kept = []
        for port in self._inputs:
            given = values[port.name]
            assert isinstance(given, np.ndarray), "a network with other values does not load"
            if port.bounds:  # those beyond do as the nearest: wide_integers
                given = np.clip(given, _INT32.min, _INT32.max)
            elif port.dtype in _WIDE:
                _check_narrow(port.name, given)
            try:
                tensor, array = tensors.tensor(given, port.dtype)
            except RuntimeError as error:  # the caller's array was found to be right before
                raise Internal(f"input {port.name!r} cannot be passed to OpenVINO") from error
            self._request.set_input_tensor(port.index, tensor)
            kept.append(array)
        return kept

    def _give_memory(self) -> dict[str, Array]:
        """Large outputs are written where the caller gets them, into fresh memory, wanted or not:
        the last run's memory is the last job's."""
        given = {}
        for port in self._outputs:
            if port.fixed is not None:
                array = np.empty(port.fixed, port.dtype.numpy())
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
            else:  # the request gets another tensor, and the array keeps this one
                empty = openvino.Tensor(tensor.element_type, openvino.Shape([0] * array.ndim))
                self._request.set_output_tensor(port.index, empty)
            taken[port.name] = array
        return taken


def _check_narrow(name: str, array: Array) -> None:
    """
    Raises:
        InvalidArgument: an integer does not fit 32 bits, in which they are computed.
    """
    if array.size and (array.max() > _INT32.max or array.min() < _INT32.min):
        raise InvalidArgument(
            f"input {name!r} holds integers beyond int32, in which this device computes; let "
            f"another one run the network",
            field=f"inputs[{name!r}]",
        )
