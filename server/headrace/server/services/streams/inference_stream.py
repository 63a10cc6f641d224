"""Streams of requests for inference, in whatever protocol."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, ClassVar

from headrace.runtime.errors import NotLoaded
from headrace.runtime.execution.job import Job
from headrace.server.services.streams.in_flight import Cancel, Tasks
from headrace.server.services.streams.request_stream import RequestStream, RequestStreams
from headrace.server.services.streams.result_sizes import SMALL, ExpectedSize, shapes_of
from headrace.server.services.streams.sequence_order import SequenceOrder
from headrace.server.serving.call import InferCall, InferResult
from headrace.server.serving.layouts import CallLayouts
from headrace.server.serving.offload import HEAVY_ELEMENTS, offload, texts
from headrace.server.serving.regions import are_written, write_outputs
from headrace.server.serving.serving import HeldRegions, Serving
from headrace.server.serving.turns import Turn, Turns
from headrace.server.shared_memory.lease import Lease
from headrace.server.shared_memory.users import Caller
from headrace.server.transport.boundary import Boundary
from headrace.server.transport.shares import Shares


class InferenceStreams(RequestStreams):
    """The open streams of one method. Belongs to the event loop's thread.

    Args:
        layouts: read requests that are like earlier ones.
        max_in_flight, memory: the same as in `RequestStreams`.
    """

    def __init__(
        self,
        serving: Serving,
        layouts: CallLayouts,
        boundary: Boundary,
        max_in_flight: int,
        memory: Shares,
    ) -> None:
        super().__init__(boundary, max_in_flight, memory, serving.networks)
        self.serving = serving
        self.layouts = layouts


class InferenceStream(RequestStream):
    """One stream. The hooks write results for a protocol.

    A request that need not wait starts without a task, and its completion ends it.
    """

    unary: ClassVar[str]
    """The path of the protocol's method for one request, by which another server is asked."""

    def __init__(self, owner: InferenceStreams, context: Any) -> None:
        super().__init__(owner, context)
        self._serving, self._layouts = owner.serving, owner.layouts
        self._tasks: Tasks[Any] = Tasks()
        self._turns = Turns()
        self._order = SequenceOrder()
        self._owner_of_regions: Caller | None = None  # asked by the first request that needs it

    # -- hooks of the protocol --

    @abstractmethod
    def _encoded(self, result: InferResult) -> Any:
        """The result of a request that this server has computed."""

    @abstractmethod
    def _passed_back(self, name: str, reply: bytes) -> Any:
        """The result of a request that another server has answered."""

    # -- common to all protocols --

    def _expected_of(self, call: InferCall) -> ExpectedSize:
        """What is known of a call's result."""
        if call.wanted and any(output.region is not None for output in call.wanted.values()):
            return SMALL
        shapes = partial(shapes_of, call.inputs)
        return self._sizes.expected(call.network, call.version, call.outputs, shapes)

    def _find_elsewhere(self, network: str, sequence: str) -> str:
        return self._serving.find_elsewhere(network, self._context, sequence)

    def _pass_on(
        self, network: str, data: Callable[[], bytes], name: str, key: Hashable, sequence: str
    ) -> Cancel:
        """Has another server answer a request.

        Args:
            network: what `_find_elsewhere` has found.
            data: writes the request.
        """

        async def ask(turn: Turn | None) -> Any:
            if turn is not None:
                await turn.comes()
            asked = self._serving.ask(network, self.unary, data(), self._context, sequence)
            return self._passed_back(name, await asked)

        if sequence:
            self._order.begin(key, (network, sequence))
        return self._in_turn(ask, name, key, sequence)

    def _in_turn(
        self,
        run: Callable[[Turn | None], Coroutine[Any, Any, Any]],
        name: str,
        key: Hashable,
        sequence: str,
    ) -> Cancel:
        """Runs a request that may have to wait, after those before it in its sequence."""
        turn = self._turns.take(sequence) if sequence else None
        return self._tasks.begin(run(turn), partial(self._ended, key, name), turn)

    def _begin_call(self, call: InferCall, key: Hashable) -> Cancel:
        """Starts a request to this server."""
        in_regions, sequence = call.uses_regions, call.sequence
        if sequence is not None:
            self._order.begin(key, (call.network, sequence.id))
            if in_regions or self._turns.waits(sequence.id):
                return self._in_turn(partial(self._run, call), call.id, key, sequence.id)
        try:
            if in_regions or call.wanted:
                return self._start_wanting(call, key)
            serving, remaining = self._serving, self._context.time_remaining()
            done = partial(serving.sink.put, partial(self._deliver, call, key, None))
            return serving.start(call, remaining, done).token.cancel
        except NotLoaded:
            identifier = "" if sequence is None else sequence.id
            return self._in_turn(partial(self._run, call), call.id, key, identifier)

    def _start_wanting(self, call: InferCall, key: Hashable) -> Cancel:
        """Starts a request with tensors in shared memory, or one that wants classes."""
        serving, caller = self._serving, self._owner_of_regions
        held: HeldRegions | None = None
        if caller is not None and call.uses_regions:
            held = serving.hold_regions(call, caller)
            if held.room is not None and not call.wants_classes:
                with held.lease as lease:
                    done = partial(self._deliver, call, key, lease)
                    remaining = self._context.time_remaining()
                    return serving.start_in_regions(call, held, remaining, done).token.cancel
        ended = partial(self._ended, key, call.id)
        return self._tasks.begin(self._run(call, None, held), ended)

    def _ended(
        self,
        key: Hashable,
        name: str,
        outcome: Any,
        error: BaseException | None,
        seconds: float,
        job: Job | None,
    ) -> None:
        report = super()._ended
        if key in self._order:
            if error is None:
                self._order.end(key, partial(report, key, name, outcome, None, seconds, job))
                return
            self._order.leave(key)
        report(key, name, outcome, error, seconds, job)

    def _deliver(self, call: InferCall, key: Hashable, lease: Lease | None, job: Job) -> None:
        """Takes the outcome of a request without a task.

        Args:
            lease: the regions of one that ran in its client's memory.
        """
        name, seconds = call.id, job.queue_seconds + job.execution_seconds
        if job.error is not None:
            self._ended(key, name, None, job.take_error(), seconds, job)
            return
        result = InferResult(call, job, job.outputs)
        is_there = lease is None or are_written(result)
        if is_there and texts(job.outputs.values()) <= HEAVY_ELEMENTS:
            self._ended(key, name, result, None, seconds, job)
            return
        if lease is not None:
            lease.hold()

        def ended(outcome: Any, error: BaseException | None, _: float, __: Job | None) -> None:
            self._ended(key, name, outcome, error, seconds, job)

        self._tasks.begin(self._finish(result, lease), ended)

    async def _finish(self, result: InferResult, lease: Lease | None) -> Any:
        """The result of a request whose outputs take long to write or to encode."""
        if lease is not None:
            with lease:
                await write_outputs(result, lease)
        return await offload(partial(self._encoded, result), texts(result.outputs.values()))

    async def _run(
        self, call: InferCall, turn: Turn | None, held: HeldRegions | None = None
    ) -> Any:
        """Computes a request that may have to wait: for a copy, or for its turn."""
        if call.uses_regions and self._owner_of_regions is None:
            self._owner_of_regions = await self._serving.caller(self._context)
        result = await self._serving.run(call, self._context, turn, held)
        return await self._finish(result, None)
