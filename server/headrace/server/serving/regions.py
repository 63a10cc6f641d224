"""Inputs and outputs of a request that lie in its client's shared memory.

Bytes are copied, unless the client has handed its memory over and the network promises that it
does no harm if the client changes the bytes during the run. Then the network computes in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Array
from headrace.server.serving.call import InferCall, InferResult, SharedTensor
from headrace.server.serving.offload import offload
from headrace.server.shared_memory.handed import HandedRegion
from headrace.server.shared_memory.lease import Lease
from headrace.wire.codec import MAX_RANK
from headrace.wire.shared_memory import no_strings

ALIGNMENT: Final = 64
"""A backend reads a tensor in a region where it lies if the tensor begins at such a multiple."""


def place_inputs(
    call: InferCall, lease: Lease, network: ExecutableNetwork
) -> Mapping[str, Array] | None:
    """Gives the call inputs that are views of its client's memory, if all can be.

    Returns:
        The `Job.room` for the outputs that certainly fit into their places. None if the inputs have
        to be copied.

    Raises:
        As `Lease.use`.
    """
    if not network.inputs_may_change:
        return None
    views: dict[str, Array] = {}
    taken: list[tuple[HandedRegion, int, int]] = []
    for name, value in call.inputs.items():
        if type(value) is not SharedTensor:
            continue
        start, size = value.region.offset, value.region.byte_size
        region = lease.use(*value.region)
        if not isinstance(region, HandedRegion) or region.memory is None or start % ALIGNMENT:
            return None
        dtype, shape = value.dtype, value.shape
        if dtype is None or len(shape) > MAX_RANK or any(each <= 0 for each in shape):
            return None
        if dtype.itemsize * math.prod(shape) != size:
            return None
        views[name] = view = np.ndarray(shape, dtype, region.memory, start)
        view.flags.writeable = False
        taken.append((region, start, start + size))
    if not views:
        return None
    call.inputs.update(views)
    return _room(call, lease, network.outputs, taken)


def _room(
    call: InferCall,
    lease: Lease,
    outputs: Sequence[Port],
    taken: list[tuple[HandedRegion, int, int]],
) -> dict[str, Array]:
    """
    Args:
        taken: where the inputs lie, from which byte to which.
    """
    room: dict[str, Array] = {}
    for port in outputs:
        wanted = call.wanted.get(port.name)
        fixed = None if port.dtype.is_string() else port.fixed_shape
        if wanted is None or wanted.region is None or fixed is None:
            continue
        start = wanted.region.offset
        region = lease.use(*wanted.region)
        if not isinstance(region, HandedRegion) or region.memory is None or start % ALIGNMENT:
            continue
        end = start + port.dtype.numpy().itemsize * math.prod(fixed)
        is_free = all(
            other is not region or end <= first or last <= start for other, first, last in taken
        )
        if region.is_writable and end <= start + wanted.region.byte_size and is_free:
            room[port.name] = np.ndarray(fixed, port.dtype.numpy(), region.memory, start)
            taken.append((region, start, end))
    return room


async def read_inputs(call: InferCall, lease: Lease) -> None:
    """Gives the call inputs that are copies of its client's memory.

    Raises:
        CodecError: the bytes are no tensor of the input's type and shape.
        Also raises as `Lease.read`.
    """
    for name, value in call.inputs.items():
        if type(value) is SharedTensor:
            data = await lease.read(*value.region)
            decode = partial(value.decode, data.data)
            call.inputs[name] = await offload(decode, len(data) if value.dtype is None else 0)


def are_written(result: InferResult) -> bool:
    """Whether `write_outputs` has nothing to do."""
    room = result.job.room or {}
    outputs = result.outputs
    return all(
        name in outputs and outputs[name] is room.get(name)
        for name, wanted in result.call.wanted.items()
        if wanted.region is not None
    )


async def write_outputs(result: InferResult, lease: Lease) -> None:
    """Writes the outputs that belong into regions, unless the network has computed them there.

    Raises:
        InvalidArgument: a region is given for what is no output of the request, or a sequence.
        CodecError: an output holds texts, which the protocol does not put there.
        Also raises as `Lease.write`.
    """
    call, job, outputs = result.call, result.job, result.outputs
    for name, wanted in call.wanted.items():
        region = wanted.region
        if region is None:
            continue
        if name not in outputs:
            raise InvalidArgument(
                f"the request has no output {name!r}; its outputs are {', '.join(outputs)}",
                field=region.field,
            )
        value = outputs[name]
        if value is None or (job.room is not None and value is job.room.get(name)):
            continue
        if isinstance(value, list):
            raise InvalidArgument(
                "a sequence does not travel in shared memory; leave it to the message",
                field=region.field,
            )
        if value.dtype == object:
            if call.encode_texts is None:
                raise no_strings(region.field)
            data = await offload(partial(call.encode_texts, value), value.size)
            value = np.frombuffer(data, np.uint8)
        elif not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        await lease.write(region.name, region.offset, region.byte_size, value, region.field)
