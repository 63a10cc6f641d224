"""Inference of the protocol over the runtime. gRPC and REST share this code."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from headrace.runtime.errors import InvalidArgument, Unimplemented
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Array, Value
from headrace.runtime.transform.options import Presentation
from headrace.server.access.identity import sharer
from headrace.server.access.networks import Networks
from headrace.server.logs import CURRENT_REQUEST
from headrace.server.request_log import JOB
from headrace.server.services.aside import aside
from headrace.server.services.completion_sink import (
    CompletionSink,
    deadline_after,
    ended,
)
from headrace.server.services.open_inference.call import (
    InferCall,
    InferResult,
    RequestedOutput,
    SharedTensor,
)
from headrace.server.services.open_inference.classification import classify, labels_of
from headrace.server.services.open_inference.datatypes import (
    BYTES,
    datatype_of,
    decode_raw,
    encode_raw,
)
from headrace.server.services.streams.turns import Turn
from headrace.server.shared_memory.lease import Lease
from headrace.server.shared_memory.regions import Regions
from headrace.server.shared_memory.users import Caller
from headrace.server.tracing.context import CURRENT_SPAN
from headrace.wire.codec import CodecError
from headrace.wire.layouts import MAX_ID_LENGTH

_ON_THE_WAY = 0.05
"""The seconds by which a caller's deadline may pass before the server's deadline."""


class OpenInference:
    """Belongs to the thread of the event loop of `sink`. gRPC and REST have one object each.

    Args:
        regions: the regions of shared memory that clients have registered.
    """

    def __init__(self, networks: Networks, sink: CompletionSink, regions: Regions) -> None:
        self._regions = regions
        self._networks = networks
        self._ids = itertools.count(1)
        self._wake = sink.wake

    async def infer(
        self,
        call: InferCall,
        remaining: float | None = None,
        turn: Turn | None = None,
    ) -> InferResult:
        """Computes one request. Its tensors are not in shared memory.

        Args:
            remaining: seconds until the caller's own deadline.
            turn: that of a sequence's request on a stream.

        Raises:
            CodecError: the request breaks the protocol.
            Also raises as `NetworkRegistry.acquire` and `ExecutableNetwork.submit`, and the job's
            error.
        """
        if len(call.id) > MAX_ID_LENGTH:
            raise CodecError("id", f"has at most {MAX_ID_LENGTH} characters")
        if not CURRENT_REQUEST.get():  # an HTTP request has its id already
            CURRENT_REQUEST.set(call.id or f"m{next(self._ids)}")
        if turn is not None:
            await turn.comes()
        sequence = "" if call.sequence is None else call.sequence.id
        entry = self._networks.acquire(call.model, call.version, sequence)
        presentation: Presentation = entry.record.request.presentation
        if presentation.max_batch_size:
            try:
                _check_rows(call, presentation.max_batch_size)
            except BaseException:
                self._networks.release(entry)
                raise
        inputs: Any = call.inputs
        endless = remaining is None and not call.timeout_seconds
        job = Job(
            inputs,
            self._wake,
            output_names=tuple([output.name for output in call.outputs]) if call.outputs else (),
            deadline=None if endless else deadline_after(call.timeout_seconds, remaining),
            priority=call.priority,
            may_run_inline=True,
            trace=call.id or CURRENT_REQUEST.get(),
            sequence=call.sequence and call.sequence._replace(owner=sharer()),
            span=CURRENT_SPAN.get(),
        )
        JOB.set(job)
        executable = entry.executable
        self._networks.submit(entry, job)
        if turn is not None:
            turn.over()
        if job.outcome is None or job.error is not None:
            await ended(job, partial(_has_expired, job))
        values: list[tuple[RequestedOutput, Value]] = []
        for output in call.outputs or _requested(job.output_names):
            value = job.outputs[output.name]
            if output.classification:
                assert executable is not None
                port = next(port for port in executable.outputs if port.name == output.name)
                labels = labels_of(presentation, port)
                value = await _classified(value, output, labels, presentation)
            values.append((output, value))
        return InferResult(call.model, entry.key.version, call.id, values)

    async def infer_in_regions(
        self,
        call: InferCall,
        caller: Caller,
        remaining: float | None = None,
        turn: Turn | None = None,
    ) -> InferResult:
        """Computes one request with tensors in regions of the caller's shared memory.

        Raises:
            As `infer` and `Lease`.
        """
        if not CURRENT_REQUEST.get():
            CURRENT_REQUEST.set(call.id[:MAX_ID_LENGTH])
        with Lease(self._regions, caller) as lease:
            await _read_inputs(call, lease)
            for output, region in call.output_regions():
                lease.use(*region, field=_output_field(output.name))
            result = await self.infer(call, remaining, turn)
            await _write_outputs(result, lease)
            return result


@lru_cache(maxsize=256)
def _requested(names: tuple[str, ...]) -> tuple[RequestedOutput, ...]:
    """A network's outputs, each of them as it is."""
    return tuple(map(RequestedOutput, names))


def tensor(value: Value, name: str) -> Array:
    """An output's value, which has to be a tensor.

    Raises:
        Unimplemented: the value is a sequence or absent.
    """
    if value is None or isinstance(value, list):
        kind = "a sequence" if isinstance(value, list) else "absent"
        raise Unimplemented(
            f"output {name!r} is {kind}, which the Open Inference Protocol lacks; ask for other "
            "outputs, or use headrace's own protocol"
        )
    return value


async def _read_inputs(call: InferCall, lease: Lease) -> None:
    for name, value in call.inputs.items():
        if isinstance(value, SharedTensor):
            field = f"inputs[{name[:200]!r}]"
            data = await lease.read(*value.region, field=f"{field}.shared_memory_region")
            decode = partial(decode_raw, value.datatype, value.shape, data.data)
            try:
                size = len(data) if value.datatype == BYTES else 0
                call.inputs[name] = await aside(decode, size)
            except CodecError as error:
                raise error.under(field) from None


async def _write_outputs(result: InferResult, lease: Lease) -> None:
    for output, value in result.outputs:
        if output.region is not None:
            array = tensor(value, output.name)
            datatype = datatype_of(array.dtype, f"output {output.name!r}")
            if datatype == BYTES:
                data = await aside(partial(encode_raw, array, datatype), array.size)
                array = np.frombuffer(data, np.uint8)
            await lease.write(*output.region, array, field=_output_field(output.name))


async def _classified(
    value: Value, output: RequestedOutput, labels: Sequence[str], presentation: Presentation
) -> Array:
    array = tensor(value, output.name)
    call = partial(
        classify,
        array,
        output.name,
        output.classification,
        labels,
        rows=presentation.max_batch_size > 0,
    )
    return await aside(call, array.size)


def _check_rows(call: InferCall, most: int) -> None:
    for name, value in call.inputs.items():
        rows = value.shape[0] if isinstance(value, np.ndarray) and value.shape else 0
        if rows > most:
            raise InvalidArgument(
                f"input {name!r} has {rows} rows; the model's max_batch_size is {most}",
                field=f"inputs[{name!r}].shape",
            )


def _output_field(name: str) -> str:
    return f"outputs[{name[:200]!r}].shared_memory_region"


def _has_expired(job: Job) -> bool:
    return job.deadline is not None and time.monotonic() > job.deadline - _ON_THE_WAY
