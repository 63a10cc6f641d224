"""Infer requests that are reused. Each works for one job at a time."""

from __future__ import annotations

import threading
import time
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
from headrace.plugins.openvino.session.memory import LARGE_BYTES, Memory, Port
from headrace.plugins.openvino.session.profiling import kind
from headrace.runtime.errors import Internal, InvalidModel
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.timer import Timer, TimerEntry
from headrace.runtime.network.data_oblivious import is_data_oblivious
from headrace.runtime.network.network import Network
from headrace.runtime.network.network import Port as NetworkPort
from headrace.runtime.network.values import Value

_CARELESS: Final = frozenset({"Col2Im"})
"""Types of layers that accept any values as their sizes and compute a result from them."""
_PATIENCE_SECONDS: Final = 1.0
"""How long a cancelled run may go on if its end would spoil later runs."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A network as OpenVINO has compiled it.

    Attributes:
        checkpoints: the checkpoints of the network's loops; None if it has none.
        guards: the network's guards; None if it has none.
        several: the network has more than one stream.
        steady: inputs of the same shapes give outputs of the same shapes.
        remembers: an operation stores the shapes of its last run, so a run that does not reach its
            end spoils later ones.
        careless: an operation accepts any values as its sizes and computes a result from them.
        shapes: checks requests before a run; None while no run has failed.
    """

    model: openvino.CompiledModel
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    checkpoints: Checkpoints | None
    guards: Guards | None
    several: bool
    steady: bool
    remembers: bool
    careless: bool
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
    if checkpoints is not None and checkpoints.port not in known:
        checkpoints = None  # no loop is left that has iterations
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
    several, steady = int(model.get_property("NUM_STREAMS")) > 1, is_data_oblivious(network.model)
    run = model.get_runtime_model().get_ops()
    shapes = (output.get_partial_shape() for each in run for output in each.outputs())
    return Compiled(
        *(model, tuple(inputs), outputs, checkpoints, guards, several, steady),
        remembers=any(shape.is_dynamic for shape in shapes),
        careless=any(kind(each) in _CARELESS for each in run),
    )


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
    large = prod(shape) * dtype.numpy().itemsize >= LARGE_BYTES
    return shape if large else None


class Request:
    """One infer request. One thread runs it at a time. `_lock` guards `_job` against the threads
    that cancel a job and end its run. They may be late, and the request may work for another job
    by then.

    A cancelled run ends between two operations, or at a loop's next checkpoint. If that spoils
    later runs, it gets a second to reach its end.

    Args:
        number: number of this request among the network's requests, from 0.
    """

    def __init__(self, compiled: Compiled, number: int) -> None:
        self._request = compiled.model.create_infer_request()
        self._memory = Memory(self._request, compiled.inputs, compiled.outputs, compiled.steady)
        self._checkpoints = compiled.checkpoints
        self._guards = compiled.guards
        self._number = number
        self._synchronous = compiled.several
        self._patient = compiled.remembers
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._end: tuple[Timer, TimerEntry] | None = None  # of a run that was cancelled
        self._failed = False
        if compiled.checkpoints is not None:
            compiled.checkpoints.errors.append(None)
            own = openvino.Tensor(np.array([number], np.int32), shared_memory=False)
            self._request.set_tensor(compiled.checkpoints.port, own)

    def run(self, job: Job, timer: Timer) -> dict[str, Value]:
        """Runs the job and returns its outputs.

        Args:
            timer: calls back when a cancelled run has had its second.

        Raises:
            HeadraceError: see `failures.run_failure`. If the job was cancelled, any error.
        """
        try:
            kept = self._memory.set_inputs(job.inputs)
            given = self._memory.give(job)
            self._compute(job, timer)
            del kept  # the backend reads these arrays until here
            if self._guards is not None:
                found = self._request.get_output_tensor(self._guards.index)
                self._guards.check(found.data, job.inputs)
            return self._memory.take(job.output_names, given)
        except Exception as error:
            failure = run_failure(error)
            if failure is error:
                raise
            raise failure from error

    def has_failed(self) -> bool:
        """Whether a run has failed, even if the thread that waits for it has not noticed yet. Any
        thread may call it."""
        if self._failed or self._job is None:
            return self._failed
        try:
            self._request.wait_for(0)
        except NATIVE:
            return True
        return False

    def profile(self) -> list[openvino.ProfilingInfo]:
        """The cost of each operation of the last run."""
        return list(self._request.profiling_info)

    def _compute(self, job: Job, timer: Timer) -> None:
        self._hold(job)
        cancel = partial(self._cancel, job, timer)
        try:
            if self._synchronous:
                job.token.attach(cancel)
                if job.token.error is not None:
                    raise job.token.error
                # An end of the run between these two lines has no effect on OpenVINO. The run then
                # continues to its own end, or to a loop's next checkpoint.
                self._request.infer(share_inputs=True, share_outputs=True)
            else:
                self._request.start_async(share_inputs=True)
                job.token.attach(cancel)  # cancels at once if the token was cancelled before
                self._request.wait()
        except NATIVE:
            self._failed = True  # before the request looks idle
            raise
        finally:
            job.token.detach(cancel)
            self._hold(None)

    def _hold(self, job: Job | None) -> None:
        with self._lock:
            self._job, end, self._end = job, self._end, None
            if self._checkpoints is not None:
                self._checkpoints.errors[self._number] = None
        if end is not None:
            timer, entry = end
            timer.cancel(entry)

    def _cancel(self, job: Job, timer: Timer) -> None:
        with self._lock:
            if self._job is not job:
                return
            if self._patient:
                when = time.monotonic() + _PATIENCE_SECONDS
                entry = timer.schedule(when, partial(self._stop, job), _PATIENCE_SECONDS / 8)
                self._end = timer, entry
                return
        self._stop(job)

    def _stop(self, job: Job) -> None:
        """Ends the run of a cancelled job."""
        with self._lock:
            if self._job is job:
                if self._checkpoints is not None:
                    self._checkpoints.errors[self._number] = job.token.error
                self._request.cancel()
