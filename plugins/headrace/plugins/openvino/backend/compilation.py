"""A network that OpenVINO has compiled for one tuple of input shapes, and its infer requests."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.plugins.openvino.backend import profiling, tensors
from headrace.plugins.openvino.backend.failures import REFUSED, run_failure
from headrace.plugins.openvino.backend.guards import NAME
from headrace.plugins.openvino.backend.integers import needs_bound
from headrace.plugins.openvino.backend.memory import CompiledPort, RequestMemory
from headrace.plugins.openvino.library import openvino
from headrace.runtime.errors import Internal, InvalidArgument, InvalidModel
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Array, Value

_PATTERN: Final = 0xA5
"""Marks the memory of outputs. What a run does not write then differs from an answer."""
_STAMP: Final = b"headrace shapes 1\n"
"""Exported networks start with it. Raise the number when networks get other guards or repairs than
before. Then no network that was exported without them is restored."""
_BOUND: Final = struct.Struct("<I")
_NO_ROOM: Final[Mapping[str, Array]] = {}


class Compilation:
    """Thread-safe: the deque's own operations are atomic.

    With several streams, runs are synchronous. OpenVINO computes on its own threads either way. The
    end of an asynchronous run goes through one more of these threads, and the processors are idle
    between runs. This costs a busy server 4 to 10 % of its throughput. With one stream, runs are
    asynchronous, because OpenVINO would compute a synchronous run on the caller's thread, where a
    cancel has no effect. With one thread, OpenVINO 2026.4 also loses the errors of some operators
    there, and answers foreign memory.

    Args:
        network: the network, transformed and with known sizes.
        native: what it was restored from.

    Attributes:
        bound: as in `core.Converted`.
        graph: the layers that OpenVINO runs, by its names for them.

    Raises:
        Internal: the inputs of the network and of the compiled model cannot be matched.
        InvalidModel: an output has another type than the network says.
    """

    def __init__(
        self, network: Network, model: openvino.CompiledModel, bound: int, native: bytes = b""
    ) -> None:
        self._model = model
        self._native = native
        self.bound = bound
        self._is_guarded = any(NAME in output.get_names() for output in model.outputs)
        self._inputs = _inputs(network, model)
        self._outputs = _outputs(network, model, len(model.outputs) - self._is_guarded)
        self._synchronous = int(model.get_property("NUM_STREAMS")) > 1
        self._idle: deque[_Request] = deque()
        self.graph = profiling.graph(model.get_runtime_model(), network)

    def run(self, job: Job, device: str, *, marked: bool = False) -> dict[str, Value]:
        """Runs the job, and returns its outputs. They do not lie in memory of the compilation.

        Args:
            device: for a profile, the device's name.
            marked: mark memory that the run does not write.

        Raises:
            HeadraceError: see `failures.run_failure`. If the job was cancelled, any error.
        """
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._new_request()
        try:
            found = request.run(job, job.room or _NO_ROOM, _PATTERN if marked else None)
            if job.profile:
                job.layers = profiling.layers(request.costs(), self.graph, device)
            return found
        except Exception as error:
            failure = run_failure(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            self._idle.append(request)

    def export(self) -> bytes:
        """OpenVINO's own bytes, behind a stamp and the bound. OpenVINO 2026.4 cannot read its own
        export of a network that it has restored, so such a network keeps the bytes."""
        if not self._native:
            exported: bytes = self._model.export_model().getvalue()
            return _STAMP + _BOUND.pack(self.bound) + exported
        return self._native

    def _new_request(self) -> _Request:
        request = self._model.create_infer_request()
        memory = RequestMemory(request, self._inputs, self._outputs, self.bound)
        return _Request(request, memory, self._synchronous, self._is_guarded)


def read_stamp(native: bytes) -> tuple[int, bytes]:
    """The bound of what `Compilation.export` returned, and OpenVINO's bytes.

    Raises:
        InvalidArgument: the network may lack guards.
    """
    start = len(_STAMP) + _BOUND.size
    if not native.startswith(_STAMP) or len(native) < start:
        raise InvalidArgument(
            "it was exported by a version that checks requests differently; load the model again",
            field="blob",
        )
    return _BOUND.unpack_from(native, len(_STAMP))[0], native[start:]


class _Request:
    """One infer request. One thread runs it at a time. `_lock` guards `_job` against the threads
    that cancel a job: they may be late, and the request may work for another job by then. A
    cancelled run ends between two operations."""

    def __init__(
        self,
        request: openvino.InferRequest,
        memory: RequestMemory,
        synchronous: bool,
        guarded: bool,
    ) -> None:
        self._request = request
        self._memory = memory
        self._synchronous = synchronous
        self._guarded = guarded
        self._lock = threading.Lock()
        self._job: Job | None = None

    def run(self, job: Job, room: Mapping[str, Array], fill: int | None) -> dict[str, Value]:
        kept = self._memory.set_inputs(job.inputs)
        given = self._memory.give(room, fill)
        self._compute(job)
        del kept  # the backend reads these arrays until here
        if self._guarded and not self._request.output_tensors[-1].data.all():
            raise InvalidArgument(
                "the network gets an index that is out of bounds, or integers that this device "
                "does not compute exactly",
                field="inputs",
            )
        return self._memory.take(job.output_names, given)

    def costs(self) -> Sequence[openvino.ProfilingInfo]:
        """The cost of each operation of the last run."""
        return list(self._request.profiling_info)

    def _compute(self, job: Job) -> None:
        self._hold(job)

        def cancel() -> None:
            with self._lock:
                if self._job is job:
                    self._request.cancel()

        try:
            if self._synchronous:
                job.token.attach(cancel)
                if job.token.error is not None:
                    raise job.token.error
                # An end of the run between these two lines has no effect on OpenVINO. The run then
                # continues to its own end.
                self._request.infer(share_inputs=True, share_outputs=True)
            else:
                self._request.start_async(share_inputs=True)
                job.token.attach(cancel)  # cancels at once if the token was cancelled before
                self._request.wait()
        finally:
            job.token.detach(cancel)
            self._hold(None)

    def _hold(self, job: Job | None) -> None:
        with self._lock:
            self._job = job


def _outputs(
    network: Network, model: openvino.CompiledModel, count: int
) -> tuple[CompiledPort, ...]:
    """They have the same order in the network and in the compiled model."""
    if count != len(network.outputs):
        raise Internal(f"of {len(network.outputs)} outputs the compiled network has {count}")
    found = []
    for index, (port, output) in enumerate(zip(network.outputs, model.outputs, strict=False)):
        if output.element_type != tensors.element_type(port.dtype):
            raise InvalidModel(
                f"{REFUSED}output {port.name!r} would have elements of "
                f"{output.element_type.get_type_name()}, where the network says "
                f"{port.dtype.name.lower()}",
                field="model",
            )
        found.append(CompiledPort(port.name, index, port.dtype, tuple(output.shape)))
    return tuple(found)


def _inputs(network: Network, model: openvino.CompiledModel) -> tuple[CompiledPort, ...]:
    """The compiled model lacks an input that nothing reads. An input that is passed on under
    another name may have lost its own name. The inputs that are not found by name have the same
    order in both."""
    known = {name: index for index, port in enumerate(model.inputs) for name in port.get_names()}
    values = network.model.graph.inputs
    read = {value.name for value in values if value.uses() or value.is_graph_output()}
    wanted = [port for port in network.inputs if port.name in read]
    named = {port.name: known[port.name] for port in wanted if port.name in known}
    left = [index for index in range(len(model.inputs)) if index not in named.values()]
    unnamed = [port.name for port in wanted if port.name not in named]
    if left:
        if len(left) != len(unnamed):
            raise Internal(f"it cannot be told which inputs are {', '.join(unnamed)}")
        named |= zip(unnamed, left, strict=True)
    return tuple(
        CompiledPort(
            port.name,
            named[port.name],
            port.dtype,
            tuple(model.inputs[named[port.name]].shape),
            needs_bound(model.inputs[named[port.name]]),
        )
        for port in wanted
        if port.name in named
    )
