"""A network on the device. It has one compiled model, and an infer request for each stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.plugins.openvino.guards.guards import stamped
from headrace.plugins.openvino.session import profiling
from headrace.plugins.openvino.session.pool import CompileBudget, Pool
from headrace.plugins.openvino.session.requests import Compiled
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.network.network import Layer, Network


class RequestNetwork(ExecutableNetwork):
    """Runs its jobs in infer requests that it keeps. Thread-safe: `_lock` guards the replacement of
    the pool that the requests come from, and the budget for it.

    With several streams, runs are synchronous. OpenVINO computes on its own threads either way. The
    end of an asynchronous run goes through one more of these threads, and the processors are idle
    between runs. This costs a busy server 4 to 10 % of its throughput. With one stream, runs are
    asynchronous, because OpenVINO would compute a synchronous run on the caller's thread, where a
    cancel has no effect. With one thread, OpenVINO 2026.4 also loses the errors of some operators
    there, and answers foreign memory. Neither kind is `inline_safe`, because the thread's processor
    time says little about the run's length.

    Args:
        compiled: the compiled network.
        compile_again: compiles the network again.
    """

    def __init__(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        streams: int,
        compiled: Compiled,
        compile_again: Callable[[], Compiled],
    ) -> None:
        super().__init__(network, config, executor, streams=streams)
        self._streams = streams
        self._compile_again = compile_again
        self._lock = threading.Lock()
        self._budget = CompileBudget()
        self._pool: Pool | None = Pool(compiled, streams)
        self._graph = profiling.graph(compiled.model.get_runtime_model(), network)

    def _infer(self, job: Job) -> None:
        done = False
        while not done:
            pool = self._sound_pool(_has_empty(job))
            if pool.compiled.shapes is not None:
                pool.compiled.shapes.check(job.inputs)
            request = pool.take()
            try:
                job.outputs = request.run(job, self.place.timer)
                if job.profile:
                    costs = request.profile()
                    job.layers = profiling.layers(costs, self._graph, self.place.device)
                done = pool.vouches_for(request)
            except Exception:
                if request.has_failed():
                    pool.failed()
                raise
            finally:
                pool.give_back(request)
            if not done:
                pool.failed()

    def _sound_pool(self, judged: bool = False) -> Pool:
        """The pool. Replaces it first if a failed run of it may affect later runs.

        Args:
            judged: the pool must check requests before they run.

        Raises:
            ResourceExhausted: it was replaced too often.
        """
        pool = self._pool
        if pool is not None and pool.serves(judged=judged):
            return pool
        with self._lock:
            assert self._pool is not None, "a job after close"
            if not self._pool.serves(judged=judged):
                self._budget.check()
                began = time.monotonic()
                try:
                    self._pool = Pool(self._compile_again(), self._streams)
                finally:
                    self._budget.spend(time.monotonic() - began)
            return self._pool

    def _export(self) -> bytes:
        """OpenVINO's own bytes with a stamp. Returns no bytes for a network with loops, because its
        checkpoints are code."""
        pool = self._pool
        if pool is None or pool.compiled.checkpoints is not None:
            return b""
        # OpenVINO 2026.4 cannot read its own export of a network that it has imported.
        compiled = self._compile_again() if self.restored else pool.compiled
        return stamped(compiled.model.export_model().getvalue())

    def _layers(self) -> tuple[Layer, ...]:
        return tuple(self._graph.values())

    def _close(self) -> None:
        self._pool = None
        del self._compile_again  # it keeps the network alive


def _has_empty(job: Job) -> bool:
    """Whether an input has no elements. An operation with an empty input does not run, so it does
    not find that its inputs do not fit."""
    for value in job.inputs.values():  # noqa: SIM110 - faster than any() in every request
        if getattr(value, "size", 1) == 0:
            return True
    return False
