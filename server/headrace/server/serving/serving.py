"""Runs inference requests, for all protocols: Infer, ModelInfer, their streams and REST.

Everything here runs on the event loop's thread. A request to a tiny network on an idle device is
computed on this thread. Any other request goes to a stream of its device, and its completion comes
back through the sink.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from headrace.runtime.errors import InvalidArgument, NotLoaded, Unimplemented
from headrace.runtime.execution.job import Job
from headrace.runtime.loading.entry import NetworkEntry
from headrace.runtime.network.values import Array, Value
from headrace.runtime.transform.options import Presentation
from headrace.server.access.identity import CALLER, sharer
from headrace.server.access.networks import Networks
from headrace.server.elsewhere import Elsewhere
from headrace.server.logs import CURRENT_REQUEST
from headrace.server.request_log import JOB
from headrace.server.serving.call import InferCall, InferResult
from headrace.server.serving.classification import classify, labels_of
from headrace.server.serving.completion_sink import CompletionSink, deadline_after, ended, wake
from headrace.server.serving.offload import offload, on_thread
from headrace.server.serving.presence import called_when_loaded
from headrace.server.serving.regions import place_inputs, read_inputs, write_outputs
from headrace.server.serving.turns import Turn
from headrace.server.shared_memory.lease import Lease
from headrace.server.shared_memory.regions import Regions
from headrace.server.shared_memory.users import Caller
from headrace.server.tracing.context import CURRENT_SPAN
from headrace.wire.codec import CodecError
from headrace.wire.request import MAX_ID_LENGTH

T = TypeVar("T")


class Context(Protocol):
    """What a request needs to know of its call."""

    def time_remaining(self) -> float | None:
        """The seconds until the caller's own deadline; None without one."""

    def peer(self) -> str:
        """The other end of the connection, in gRPC's form."""

    async def user(self) -> int | None:
        """The id of the caller's user on this machine; None if the caller is elsewhere."""


class HeldRegions(NamedTuple):
    """What a request with tensors in shared memory holds before it starts.

    Attributes:
        lease: the regions, which have all been checked.
        entry: the network. None in a sequence, whose request before may decide the version.
        room: the `Job.room` of a run in the client's memory. None if the inputs have to be copied.
    """

    lease: Lease
    entry: NetworkEntry | None
    room: Mapping[str, Array] | None


class Serving:
    """Belongs to the thread of the event loop of `sink`. gRPC and REST have one object each.

    Args:
        regions: the regions of shared memory that clients have registered.
        elsewhere: the networks that other servers have. None if there are no others.

    Attributes:
        networks, sink, elsewhere: as given.
    """

    def __init__(
        self,
        networks: Networks,
        sink: CompletionSink,
        regions: Regions,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.networks = networks
        self.sink = sink
        self.elsewhere = elsewhere
        self._regions = regions
        self._ids = itertools.count(1)
        self._wake = sink.wake

    def name(self, identifier: str) -> None:
        """Gives the call that is being handled an id for its logs: the request's own, or a new one.
        A call may have one already, as those of HTTP do."""
        if not CURRENT_REQUEST.get():
            CURRENT_REQUEST.set(identifier[:MAX_ID_LENGTH] or f"r{next(self._ids)}")

    def find_elsewhere(self, network: str, context: Any, sequence: str = "") -> str:
        """The full name of a network that the caller means and another server has. Empty if the
        request is for this server."""
        if not self.elsewhere:
            return ""
        return self.elsewhere.find(self.networks.names(network), context, sequence)

    async def ask(
        self, network: str, method: str, data: bytes, context: Any, sequence: str = ""
    ) -> bytes:
        """The reply of another server to a request for what `find_elsewhere` has found.

        Args:
            method: the path of the method.

        Raises:
            As `Elsewhere.unary`.
        """
        assert self.elsewhere is not None
        return await self.elsewhere.unary(network, method, data, context, sequence)

    async def passed_on(
        self, call: InferCall, method: str, data: bytes | Callable[[], bytes], context: Any
    ) -> bytes | None:
        """The reply of another server that has the network of a request. None if the request is
        for this server.

        Args:
            method: the path of the method.
            data: the request, or what writes it on another thread.

        Raises:
            As `data` and `Elsewhere.unary`.
        """
        sequence = call.sequence_id
        network = self.find_elsewhere(call.network, context, sequence)
        if not network:
            return None
        if not isinstance(data, bytes | memoryview):
            data = await on_thread(data)
        return await self.ask(network, method, data, context, sequence)

    async def run(
        self,
        call: InferCall,
        context: Context,
        turn: Turn | None = None,
        held: HeldRegions | None = None,
    ) -> InferResult:
        """Computes one request.

        Args:
            turn: that of a sequence's request on a stream.
            held: the regions of a request in shared memory, if it holds them already.

        Raises:
            CodecError: the request breaks the protocol.
            Also raises as `NetworkRegistry.acquire`, `ExecutableNetwork.submit` and `Lease`, and
            the job's error.
        """
        if call.uses_regions:
            if held is None:
                caller = await self.caller(context)
                held = await self._waiting(lambda _: self.hold_regions(call, caller), call, context)
            return await self._run_in_regions(call, context, turn, held)
        if turn is not None:
            await turn.comes()
        entry = None
        if call.wanted:
            entry = await self._waiting(lambda _: self._acquire(call), call, context)
        labels = {} if entry is None else _labels(call, entry)
        try:
            job = self.start(call, context.time_remaining(), self._wake, entry)
        except NotLoaded:
            job = await self._waiting(
                lambda remaining: self.start(call, remaining, self._wake), call, context
            )
        JOB.set(job)
        if turn is not None:
            turn.over()
        if job.waiter is None or job.error is not None:
            await ended(job)
        result = InferResult(call, job, job.outputs)
        if labels:
            await _classify(result, labels)
        return result

    async def caller(self, context: Context) -> Caller:
        """The caller, whose regions a call may name."""
        return await caller_of(context, self.networks)

    async def _waiting(
        self, take: Callable[[float | None], T], call: InferCall, context: Context
    ) -> T:
        """What `take` returns, which acquires the network of a call. It gets the seconds that the
        call has left, or None. Raises as `called_when_loaded`."""
        deadline = deadline_after(call.timeout_seconds, context.time_remaining())

        def taken() -> T:
            return take(None if deadline is None else deadline - time.monotonic())

        return await called_when_loaded(taken, deadline, call.priority)

    def _acquire(self, call: InferCall) -> NetworkEntry:
        return self.networks.acquire(call.network, call.version, call.sequence_id)

    def hold_regions(self, call: InferCall, caller: Caller) -> HeldRegions:
        """Takes the regions of a request, and its network. Its run gives both back.

        Raises:
            As `Lease.use` and `NetworkRegistry.acquire`.
        """
        lease = Lease(self._regions, caller)
        try:
            for region in call.regions():  # a wrong place is found before the run
                lease.use(*region)
            if call.sequence is not None:
                return HeldRegions(lease, None, None)
            entry = self._acquire(call)
            try:
                assert entry.executable is not None
                return HeldRegions(lease, entry, place_inputs(call, lease, entry.executable))
            except BaseException:
                self.networks.release(entry)
                raise
        except BaseException:
            lease.close()
            raise

    async def _run_in_regions(
        self, call: InferCall, context: Context, turn: Turn | None, held: HeldRegions
    ) -> InferResult:
        lease, entry, room = held
        with lease:
            try:
                if room is None:
                    await read_inputs(call, lease)
                if entry is None and turn is not None:
                    await turn.comes()
            except BaseException:
                if entry is not None:
                    self.networks.release(entry)
                raise
            if entry is None:
                entry = await self._waiting(lambda _: self._acquire(call), call, context)
            labels = _labels(call, entry)
            remaining = context.time_remaining()
            if room is None:
                job = self.start(call, remaining, self._wake, entry)
            else:
                job = self.start_in_regions(call, held, remaining, wake)
            JOB.set(job)
            if turn is not None:
                turn.over()
            await ended(job)
            result = InferResult(call, job, job.outputs)
            await _classify(result, labels)
            await write_outputs(result, lease)
            return result

    def start_in_regions(
        self,
        call: InferCall,
        held: HeldRegions,
        remaining: float | None,
        done: Callable[[Job], None],
    ) -> Job:
        """Submits a request that runs in its client's memory.

        The run holds the lease, because it does not end at once if the caller leaves.

        Args:
            held: has a `room`.
            remaining: seconds until the call's own deadline.
            done: is called on the loop's thread.

        Raises:
            As `start`.
        """
        lease = held.lease
        lease.hold()
        try:
            ended = partial(self.sink.put, partial(_let_go, lease, done))
            return self.start(call, remaining, ended, held.entry, held.room)
        except BaseException:
            lease.close()
            raise

    def start(
        self,
        call: InferCall,
        remaining: float | None,
        done: Callable[[Job], None],
        entry: NetworkEntry | None = None,
        room: Mapping[str, Array] | None = None,
    ) -> Job:
        """Submits a request whose inputs are all there.

        Args:
            remaining: seconds until the call's own deadline.
            done, room: the same as in `Job`.
            entry: the network, if it was acquired already. It is given back in any case.

        Raises:
            CodecError: the id is too long.
            InvalidArgument: an input has more rows than the network takes.
            Also raises as `NetworkRegistry.acquire` and `ExecutableNetwork.submit`.
        """
        timeout, sequence = call.timeout_seconds, call.sequence
        inputs: Any = call.inputs
        if entry is None:
            name = "" if sequence is None else sequence.id
            entry = self.networks.acquire(call.network, call.version, name)
        try:
            if len(call.id) > MAX_ID_LENGTH:
                raise CodecError("id", f"has at most {MAX_ID_LENGTH} characters")
            presentation = entry.record.request.presentation
            if presentation.max_batch_size:
                _check_rows(call, presentation.max_batch_size)
            executable = entry.executable
            assert executable is not None
        except BaseException:
            self.networks.release(entry)
            raise
        job = Job(
            inputs,
            done,
            output_names=call.outputs,
            deadline=(
                None if remaining is None and not timeout else deadline_after(timeout, remaining)
            ),
            priority=call.priority or presentation.priority,
            profile=call.performance_counts,
            may_run_inline=True,
            trace=call.id or CURRENT_REQUEST.get(),
            sequence=sequence,
            span=CURRENT_SPAN.get(),
            owner=sharer() if executable.knows_callers else "",
        )
        job.room = room
        self.networks.submit(entry, job)
        return job


async def caller_of(context: Context, networks: Networks) -> Caller:
    """The caller, whose regions a call may name."""
    user, identity = await context.user(), CALLER.get().name
    return Caller(user, context.peer(), networks.owner, identity)


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


def _let_go(lease: Lease, done: Callable[[Job], None], job: Job) -> None:
    """Ends a run in its client's memory."""
    lease.job = job
    try:
        done(job)
    finally:
        lease.close()


def _labels(call: InferCall, entry: NetworkEntry) -> dict[str, Callable[[Array], Array]]:
    """What makes classes of the outputs of which they are wanted. The network is held now, and may
    be unloaded when they have been computed."""
    assert entry.executable is not None
    presentation: Presentation = entry.record.request.presentation
    ports = {port.name: port for port in entry.executable.outputs}
    return {
        name: partial(
            classify,
            name=name,
            count=wanted.classification,
            labels=labels_of(presentation, ports[name]),
            rows=presentation.max_batch_size > 0,
        )
        for name, wanted in call.wanted.items()
        if wanted.classification and name in ports
    }


async def _classify(result: InferResult, labels: Mapping[str, Callable[[Array], Array]]) -> None:
    """Puts classes in the place of the outputs of which they are wanted."""
    classified: dict[str, Value] = {}
    for name, make in labels.items():
        array = tensor(result.outputs[name], name)
        classified[name] = await offload(partial(make, array), array.size)
    if classified:
        result.outputs = {**result.outputs, **classified}


def _check_rows(call: InferCall, most: int) -> None:
    for name, value in call.inputs.items():
        rows = value.shape[0] if isinstance(value, np.ndarray) and value.shape else 0
        if rows > most:
            raise InvalidArgument(
                f"input {name!r} has {rows} rows; the model's max_batch_size is {most}",
                field=f"inputs[{name!r}].shape",
            )
