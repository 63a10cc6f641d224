"""The part of headrace's own protocol that registers shared memory and uses tensors in it.

Belongs to the event loop's thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Port
from headrace.server.access.identity import CALLER
from headrace.server.access.networks import Networks
from headrace.server.services.aside import aside, texts
from headrace.server.shared_memory.handed import HandedRegion
from headrace.server.shared_memory.lease import Lease
from headrace.server.shared_memory.regions import Regions
from headrace.server.shared_memory.users import Caller
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import Array, Buffer, encode_values
from headrace.wire.layouts import Inputs
from headrace.wire.placed import ALIGNMENT, Placed
from headrace.wire.shared_memory import attach, describe, in_regions, no_strings

_MAX_VIEWS: Final = 64
"""How many requests a region keeps arrays for."""


class SharedMemoryService:
    """The methods about regions.

    Args:
        networks: says who the owner of the caller's regions is.
    """

    def __init__(self, regions: Regions, networks: Networks) -> None:
        self._regions = regions
        self._networks = networks

    async def caller(self, context: Any) -> Caller:
        """The caller, whose regions a call may name."""
        user, identity = await context.user(), CALLER.get().name
        return Caller(user, context.peer(), self._networks.owner, identity)

    async def lease(self, context: Any) -> Lease:
        """A lease for one request. The request closes it at its end."""
        return Lease(self._regions, await self.caller(context))

    def take(self, placed: Placed, caller: Caller) -> tuple[Lease, HandedRegion] | None:
        """A lease and the memory of a request like an earlier one, without waiting. None if that
        does not work: then `fetch_inputs` does, or raises the error."""
        lease = Lease(self._regions, caller)
        memory = lease.use_mapped(
            placed.region, placed.extent, placed.input_bytes, placed.moved_bytes
        )
        if memory is None:
            lease.close()
            return None
        return lease, memory

    async def register(
        self, request: pb.RegisterSharedMemoryRequest, context: Any
    ) -> pb.RegisterSharedMemoryReply:
        caller = await self.caller(context)
        self._regions.register(caller, request.name, request.key, request.offset, request.bytes)
        return pb.RegisterSharedMemoryReply()

    async def unregister(
        self, request: pb.UnregisterSharedMemoryRequest, context: Any
    ) -> pb.UnregisterSharedMemoryReply:
        await self._regions.unregister(await self.caller(context), request.name)
        return pb.UnregisterSharedMemoryReply()

    async def list(self, _: Any, context: Any) -> pb.ListSharedMemoryReply:
        reply = pb.ListSharedMemoryReply()
        for each in self._regions.status(await self.caller(context)):
            reply.regions.add(
                name=each.name, key=each.key, offset=each.offset, bytes=each.byte_size
            )
        return reply


class InPlace(NamedTuple):
    """A request's tensors where they lie in its client's memory.

    Attributes:
        placed, outputs: the request and the network's outputs that they were made for.
        room: memory for those outputs that certainly fit into their places.
    """

    placed: Placed
    outputs: Sequence[Port]
    inputs: Inputs
    room: Mapping[str, Array]


def tensors(
    placed: Placed, region: HandedRegion, network: ExecutableNetwork
) -> tuple[Inputs, Mapping[str, Array] | None]:
    """The inputs of a request like an earlier one, and the `Job.room` for its outputs.

    Copies the inputs if the network needs inputs that nobody changes. Its outputs then get no room,
    because the backend may read them again.
    """
    if not network.inputs_may_change or not placed.is_aligned:
        inputs: Inputs = dict(placed.others)
        for name, dtype, shape, start, end in placed.inputs:
            inputs[name] = np.ndarray(shape, dtype, region.copy_of(start, end))
        return inputs, None
    known: InPlace | None = region.views.get(id(placed))
    if known is None or known.placed is not placed or known.outputs is not network.outputs:
        if len(region.views) >= _MAX_VIEWS:
            region.views.clear()
        known = region.views[id(placed)] = _in_place(placed, region, network.outputs)
    return dict(known.inputs), known.room


def _in_place(placed: Placed, region: HandedRegion, outputs: Sequence[Port]) -> InPlace:
    memory, inputs = region.memory, dict(placed.others)
    for name, dtype, shape, start, _ in placed.inputs:
        view: Array = np.ndarray(shape, dtype, memory, start)
        view.flags.writeable = False
        inputs[name] = view
    room: dict[str, Array] = {}
    taken = [(start, end) for *_, start, end in placed.inputs]
    ports = {port.name: port for port in outputs}
    for name, start, size in placed.outputs if region.is_writable else ():
        port = ports.get(name)
        fixed = None if port is None or port.dtype.is_string() else port.fixed_shape
        if port is None or fixed is None or start % ALIGNMENT:
            continue
        end = start + port.dtype.numpy().itemsize * math.prod(fixed)
        if end <= start + size and all(end <= first or last <= start for first, last in taken):
            room[name] = np.ndarray(fixed, port.dtype.numpy(), memory, start)
            taken.append((start, end))
    return InPlace(placed, outputs, inputs, room)


async def fetch_inputs(
    lease: Lease, message: pb.InferRequest, attachments: Sequence[Buffer]
) -> list[Buffer]:
    """The attachments that decoding the request needs: its own, and the bytes of its inputs.

    Also checks the places of its outputs, to find a wrong place before the network computes.

    Raises:
        CodecError: a tensor's place breaks the protocol.
        Also raises as `Lease.read`.
    """
    for name, place in message.output_regions.items():
        lease.use(place.region, place.offset, place.bytes, _output_field(name))
    fetched = list(attachments)
    for field, tensor in in_regions(message.inputs, "inputs"):
        place = tensor.shared_memory
        data = await lease.read(place.region, place.offset, place.bytes, field)
        attach(tensor, data.data, fetched)
    return fetched


def put_now(lease: Lease, placed: Placed, job: Job) -> bool:
    """Writes a completed job's outputs into their region, if each is a tensor that fits there.
    Otherwise `put_outputs` has to do it, or to raise the error."""
    if not placed.outputs:
        return True
    memory = lease.mapped(placed.region)
    if memory is None or not memory.is_writable:
        return False
    outputs: list[tuple[int, Array]] = []
    for name, start, room in placed.outputs:
        value = job.outputs.get(name) if name in job.output_names else None
        if job.room is not None and name in job.room and value is job.room[name]:
            continue  # the network has computed it there
        if type(value) is not np.ndarray or value.nbytes > room or not value.dtype.isnative:
            return False
        if value.dtype == object:
            return False
        outputs.append((start, np.ascontiguousarray(value).reshape(-1).view(np.uint8)))
    for start, data in outputs:
        memory.write(start, data, "")
    return True


async def put_outputs(
    lease: Lease, message: pb.InferRequest, job: Job, reply: pb.InferReply
) -> list[Any]:
    """Writes a completed job's outputs, each into its region or the reply.

    Returns the reply's attachments.

    Raises:
        InvalidArgument: a region is given for a name that is not an output of the request.
        CodecError: an output is not a tensor of numbers.
        Also raises as `Lease.write`.
    """
    parts: list[Any] = []
    places = dict(message.output_regions)
    for name in job.output_names:
        value, place = job.outputs[name], places.pop(name, None)
        if place is None or value is None:
            encode = partial(encode_values, {name: value}, reply.outputs, parts)
            await aside(encode, texts([value]))
            continue
        field = _output_field(name)
        if not isinstance(value, np.ndarray):
            raise InvalidArgument(
                "a sequence does not travel in shared memory; leave it to the message", field=field
            )
        if value.dtype == object:
            raise no_strings(field)
        value = value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
        await lease.write(place.region, place.offset, place.bytes, value, field)
        describe(value, place, reply.outputs.add(name=name).tensor, field)
    for name in places:
        raise InvalidArgument(
            f"the request has no output {name!r}; its outputs are {', '.join(job.output_names)}",
            field=_output_field(name),
        )
    return parts


def _output_field(name: str) -> str:
    return f"output_regions[{name!r}]"
