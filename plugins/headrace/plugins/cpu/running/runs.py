"""Passes a request's values into a session and out of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

import numpy as np
from onnxruntime.capi import _pybind_state as binding

from headrace.plugins.cpu.backend.session import OnnxRuntimeSession
from headrace.plugins.cpu.backend.tensors import TensorConversion
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Array, Value

_ARRAYS = {np.ndarray}
HOST: Final = binding.OrtDevice(binding.OrtDevice.cpu(), binding.OrtDevice.default_memory(), 0)


class Runs(Protocol):
    """Runs a job with its own run options, and returns the outputs that the job wants. Several
    threads may call it at a time. Raises the backend's errors."""

    def __call__(self, job: Job, options: Any) -> dict[str, Value]: ...


class HostRuns:
    """Takes and gives arrays in the host's memory, in their place. Thread-safe.

    Args:
        certain: the outputs that certainly have the shape that the network declares. They may be
            computed into a job's room. With another shape that would fail.
    """

    __slots__ = ("_certain", "_conversion", "_session")

    def __init__(
        self,
        session: OnnxRuntimeSession,
        conversion: TensorConversion,
        certain: Collection[str] = (),
    ) -> None:
        self._session = session
        self._conversion = conversion
        self._certain = frozenset(certain)

    def __call__(self, job: Job, options: Any) -> dict[str, Value]:
        names, session, conversion = job.output_names, self._session, self._conversion
        if conversion.plain and {*map(type, job.inputs.values())} <= _ARRAYS:
            if job.room and self._certain:
                return self._into_room(job, job.room, options)
            return dict(zip(names, session.run(names, job.inputs, options), strict=True))
        feed = conversion.feed(job.inputs)
        if conversion.as_values:
            return conversion.fetch(names, session.run_values(feed, names, options))
        return dict(zip(names, session.run(names, feed, options), strict=True))

    def _into_room(self, job: Job, given: Mapping[str, Array], options: Any) -> dict[str, Value]:
        """Has the session compute into the job's room, as far as there is room."""
        names, ports = job.output_names, self._session.ports()
        room = {name: given[name] for name in names if name in self._certain and name in given}
        for name, value in job.inputs.items():
            ports.bind_input(name, value)
        for name in names:
            if name in room:
                array = room[name]
                at = array.__array_interface__["data"][0]
                ports.bind_output(name, HOST, array.dtype.type, array.shape, at)
            else:
                ports.bind_output(name, HOST)
        self._session.run_bound(ports, options)
        if len(room) == len(names):
            return dict(room)
        made = zip(names, ports.get_outputs(), strict=True)
        return {name: room[name] if name in room else value.numpy() for name, value in made}
