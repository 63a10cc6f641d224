"""Runs that keep their memory. Values are staged in pinned memory, which the GPU copies by itself
while other streams compute. For a recorded run, values are in the GPU's own memory.

ONNX Runtime gives each current run its own CUDA stream, so one session is enough for all streams of
the device. But a recorded run belongs to its session, which then runs one request at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi import _pybind_state as binding

from headrace.plugins.cpu.backend import tensors
from headrace.plugins.cpu.backend.session import OnnxRuntimeSession
from headrace.plugins.cpu.running.runs import HOST, Runs
from headrace.plugins.cuda.backend.memory import PinnedMemory
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network, Port
from headrace.runtime.network.values import Array, Value

_NOT_BYTES: Final = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)


def bindable(network: Network) -> bool:
    """Whether all inputs and outputs are plain bytes: tensors whose elements are whole bytes."""
    return all(map(_is_bytes, (*network.inputs, *network.outputs)))


def not_recordable(network: Network) -> list[str]:
    """The ports that keep runs of the network from being recorded."""
    return [
        port.name
        for port in (*network.inputs, *network.outputs)
        if not _is_bytes(port) or port.dtype not in tensors.BINDING_CONVERTS or not _fixed(port)
    ]


def _is_bytes(port: Port) -> bool:
    whole = port.dtype not in _NOT_BYTES and port.dtype.bitwidth >= 8
    return port.kind == "tensor" and not port.optional and whole


def _fixed(port: Port) -> bool:
    return port.fixed_shape is not None


def memory_of(gpu: int) -> Any:
    """A GPU's memory, as ONNX Runtime names it. The binding's own constructor leaves out the
    vendor. To ONNX Runtime, a GPU without a vendor is another device, and it copies nothing from
    there to NVIDIA's GPU."""
    return onnxruntime.OrtDevice.make("cuda", gpu)._get_c_device()


class BoundRuns:
    """One lane for each request that runs at once. A job takes any idle lane. No lock is needed,
    because the deque's own operations are atomic.

    Args:
        lane: makes a lane, which runs one job at a time.
    """

    def __init__(self, lane: Callable[[], Runs], at_once: int) -> None:
        self._idle = deque(lane() for _ in range(at_once))

    def __call__(self, job: Job, options: Any) -> dict[str, Value]:
        lane = self._idle.pop()
        try:
            return lane(job, options)
        finally:
            self._idle.append(lane)


class StagedLane:
    """Copies inputs into pinned memory. If the network's shapes are known, its outputs come into
    pinned memory too, and are copied to the caller. ONNX Runtime allocates memory for the other
    outputs. The lane's pinned memory grows as needed, and never shrinks.

    Args:
        memory: allocates pinned memory.
    """

    def __init__(self, session: OnnxRuntimeSession, network: Network, memory: PinnedMemory) -> None:
        self._session = session
        self._ports = session.ports()
        self._memory = memory
        self._inputs = network.inputs
        self._outputs = {port.name: port for port in network.outputs}
        # If a network's inputs vary, an output that is declared as fixed often varies too: its
        # batch of 1 remains from the export. The CPU device returns the real shape, so GPUs do too.
        self._known = all(map(_fixed, network.inputs))
        self._staged: dict[str, Array] = {}

    def __call__(self, job: Job, options: Any) -> dict[str, Value]:
        ports = self._ports
        for port in self._inputs:
            array = job.inputs[port.name]
            assert isinstance(array, np.ndarray), "a network with other values is not bound"
            staged = self._stage("in", port.name, array.nbytes)
            _bytes_into(staged, array)
            ports.bind_input(port.name, HOST, port.dtype.value, array.shape, staged.ctypes.data)
        given_memory = {name: self._bind_output(self._outputs[name]) for name in job.output_names}
        try:
            self._session.run_bound(ports, options)
            return self._taken(given_memory)
        finally:
            ports.clear_binding_outputs()

    def _bind_output(self, port: Port) -> Array | None:
        shape = port.fixed_shape if self._known else None
        if shape is None:
            self._ports.bind_output(port.name, HOST)
            return None
        staged = self._stage("out", port.name, prod(shape) * port.dtype.numpy().itemsize)
        self._ports.bind_output(port.name, HOST, port.dtype.value, shape, staged.ctypes.data)
        return staged.view(port.dtype.numpy()).reshape(shape)

    def _taken(self, given: dict[str, Array | None]) -> dict[str, Value]:
        outputs = self._ports.get_outputs()
        return {
            name: memory.copy()
            if memory is not None
            else tensors.from_ort(outputs[place], self._outputs[name].dtype)
            for place, (name, memory) in enumerate(given.items())
        }

    def _stage(self, way: str, name: str, size: int) -> Array:
        key = f"{way} {name}"
        known = self._staged.get(key)
        if known is None or known.nbytes < size:
            known = self._staged[key] = self._memory.allocate(max(size, 1))
        return known[:size]


class RecordedLane:
    """Keeps inputs and outputs at fixed places in the GPU's memory, because a recorded run always
    uses the same places.

    Args:
        session: a session that records, for this lane alone.
        network: a network with fixed shapes.
        where: the GPU's memory, as ONNX Runtime names it.
    """

    def __init__(
        self, session: OnnxRuntimeSession, network: Network, where: Any, memory: PinnedMemory
    ) -> None:
        self._session = session
        self._ports = session.ports()
        self._inputs = {port.name: _value(port, where) for port in network.inputs}
        self._outputs = {port.name: _value(port, where) for port in network.outputs}
        self._staged = {
            name: memory.allocate(max(value.tensor_size_in_bytes(), 1))
            for name, value in self._inputs.items()
        }
        for name, value in self._inputs.items():
            self._ports.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._ports.bind_ortvalue_output(name, value)

    def __call__(self, job: Job, options: Any) -> dict[str, Value]:
        for name, value in self._inputs.items():
            array = job.inputs[name]
            assert isinstance(array, np.ndarray), "a network with other values is not bound"
            staged = self._staged[name][: array.nbytes]
            _bytes_into(staged, array)
            value.update_inplace(staged.view(array.dtype).reshape(array.shape))
        self._session.run_bound(self._ports, options)
        # Copies the outputs, because the binding returns a view if the memory is the host's.
        return {name: self._outputs[name].numpy().copy() for name in job.output_names}


def _value(port: Port, where: Any) -> Any:
    """Memory for the port's values."""
    make = binding.OrtValue.ortvalue_from_shape_and_onnx_type
    return make(list(port.fixed_shape or ()), port.dtype.value, where)


def _bytes_into(staged: Array, given: Array) -> None:
    np.copyto(staged.view(given.dtype).reshape(given.shape), given)
