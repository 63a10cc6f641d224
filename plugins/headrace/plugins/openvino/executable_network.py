"""A network on the device: one compiled model, and an infer request for each stream."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.plugins.openvino.guards.guards import stamped
from headrace.plugins.openvino.session import profiling
from headrace.plugins.openvino.session.pool import Pool
from headrace.plugins.openvino.session.requests import Compiled
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.network.network import Layer, Network


class RequestNetwork(ExecutableNetwork):
    """Runs its jobs in infer requests that stay. Thread-safe: `_lock` guards the exchange of the
    pool they come from.

    With several streams runs are synchronous: OpenVINO computes on threads of its own either way,
    and the end of an asynchronous run goes through one more of them, which leaves the processors
    idle between runs, 4 to 10 % of a busy server's throughput. With one stream it would compute a
    synchronous run on the caller's thread, where cancels are not heard, so there runs are
    asynchronous. Neither is `inline_safe`: the thread's processor time says little of the run's
    length.

    Args:
        compiled: the network.
        compile_again: compiles it anew.
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
                job.outputs = request.run(job)
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
        """The pool, another one if a run of it has failed in a way that leaves something behind.

        Args:
            judged: one that judges requests before they run.
        """

        def serves(pool: Pool) -> bool:
            unjudged = pool.unjudged or (judged and pool.compiled.shapes is None)
            return not pool.spoilt and not unjudged

        pool = self._pool
        if pool is not None and serves(pool):
            return pool
        with self._lock:
            assert self._pool is not None, "a job after close"
            if not serves(self._pool):
                self._pool = Pool(self._compile_again(), self._streams)
            return self._pool

    def _export(self) -> bytes:
        """OpenVINO's own bytes, stamped; none of a network with loops, whose checkpoints are
        code."""
        pool = self._pool
        if pool is None or pool.compiled.checkpoints is not None:
            return b""
        # What OpenVINO 2026.4 exports of a network that it has imported, it cannot read again.
        compiled = self._compile_again() if self.restored else pool.compiled
        return stamped(compiled.model.export_model().getvalue())

    def _layers(self) -> tuple[Layer, ...]:
        return tuple(self._graph.values())

    def _close(self) -> None:
        self._pool = None
        del self._compile_again  # which has the network


def _has_empty(job: Job) -> bool:
    """Whether an input has no elements: operations with such an input do not run, so none finds
    that its inputs do not fit."""
    return any(getattr(value, "size", 1) == 0 for value in job.inputs.values())
