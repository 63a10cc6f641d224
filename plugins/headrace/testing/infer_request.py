"""A reusable request on one network, for code that runs networks in this process.

States: IDLE, BUSY from `start_async` until the outcome, CANCELLED after one that ended so, STOPPED
from `close` on. Virtual devices and servers use jobs; a request is a job with a memory.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from typing import Any

import onnx

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import Cancelled, FailedPrecondition, RequestBusy
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, LayerProfile, Outcome
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Value
from headrace.testing.case import network_of


class RequestState(enum.Enum):
    IDLE = "idle"
    BUSY = "busy"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


class InferRequest:
    """One inference at a time on one network. Thread-safe; `_changed`'s lock guards all fields.

    Args:
        network: an open network.
        callback: called after each inference, on the thread that finished it, with the request.
    """

    def __init__(
        self,
        network: ExecutableNetwork,
        callback: Callable[[InferRequest], None] | None = None,
    ) -> None:
        self._network = network
        self._callback = callback
        self._changed = threading.Condition(threading.Lock())
        self._state = RequestState.IDLE
        self._running = False
        self._job: Job | None = None  # that runs, or the last one

    @property
    def state(self) -> RequestState:
        return self._state

    def start_async(
        self,
        inputs: Mapping[str, Value],
        *,
        output_names: tuple[str, ...] = (),
        deadline: float | None = None,
        priority: int = 0,
        profile: bool = False,
    ) -> None:
        """Begins an inference; arguments as `Job`.

        Raises:
            RequestBusy: one is under way; make another request to run both.
            FailedPrecondition: the request is closed.
            As `ExecutableNetwork.submit` raises.
        """
        job = Job(
            inputs,
            self._done,
            output_names=output_names,
            deadline=deadline,
            priority=priority,
            token=CancelToken(),
            profile=profile,
        )
        with self._changed:
            if self._state is RequestState.STOPPED:
                raise FailedPrecondition("the request is closed")
            if self._running:
                raise RequestBusy("the request is running; wait for it or use another one")
            self._state = RequestState.BUSY
            self._running = True
            self._job = job
        try:
            self._network.submit(job)
        except BaseException:
            self._end(None, RequestState.IDLE)
            raise

    def infer(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Starts, waits and returns the outputs by name."""
        self.start_async(inputs)
        return self.result()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until no inference is under way, at most `timeout` seconds; False if one is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout)

    def result(self, timeout: float | None = None) -> dict[str, Value]:
        """The outputs of the inference started last, by name.

        Raises:
            TimeoutError: it is still under way after `timeout` seconds.
            FailedPrecondition: none was started.
            Whatever the inference raised.
        """
        with self._changed:
            job = self._job
            if job is None:
                raise FailedPrecondition("the request has not been started")
            # Somebody else may start the next inference before this thread wakes.
            if not self._changed.wait_for(
                lambda: self._job is not job or not self._running, timeout
            ):
                raise TimeoutError(f"the inference is still running after {timeout} seconds")
        if job.error is not None:
            raise job.error
        return job.outputs

    def cancel(self) -> None:
        """Asks the inference under way to end; nothing happens if there is none."""
        with self._changed:
            job = self._job if self._running else None
        if job is not None:
            job.token.cancel(Cancelled("the request was cancelled"))

    @property
    def performance_counts(self) -> list[LayerProfile]:
        """The time of each layer in the last inference, if it was requested."""
        job = self._job
        return list(job.layers) if job is not None else []

    def close(self) -> None:
        """Refuses further inferences, cancels the one under way and waits for its end."""
        with self._changed:
            self._state = RequestState.STOPPED
        self.cancel()
        self.wait()

    def _done(self, job: Job) -> None:
        cancelled = job.outcome is Outcome.CANCELLED
        self._end(job, RequestState.CANCELLED if cancelled else RequestState.IDLE)
        if self._callback is not None:
            self._callback(self)

    def _end(self, job: Job | None, state: RequestState) -> None:
        with self._changed:
            self._job = job
            self._running = False
            if self._state is not RequestState.STOPPED:
                self._state = state
            self._changed.notify_all()


def infer_once(
    plugin: Plugin,
    network: Network | onnx.ModelProto | str,
    *inputs: Any,
    config: Mapping[str, str] | None = None,
    **named: Any,
) -> dict[str, Any]:
    """The outputs by name of a network that is loaded for this one inference.

    Args:
        network: or a model of it, or a text as `parse` takes it.
        inputs: in the order of the network's.
        config: of the load.
        named: inputs by name.

    Raises:
        As `Plugin.load_network` and the inference do.
    """
    given = network if isinstance(network, Network) else network_of(network)
    compiled = plugin.load_network(Load(given, dict(config or {})))
    try:
        names = [port.name for port in compiled.inputs if port.name not in named]
        ordered = dict(zip(names, inputs, strict=True)) if inputs else {}
        return InferRequest(compiled).infer({**ordered, **named})
    finally:
        compiled.close()
