"""A network on the device: all streams share one session, and so do copies of the network."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.backend.failures import run_failure
from headrace.plugins.cpu.backend.session import OnnxRuntimeSession
from headrace.plugins.cpu.backend.tensors import TensorConversion
from headrace.plugins.cpu.guards.network import GuardedNetwork, replaceable
from headrace.plugins.cpu.running.arena import Arena
from headrace.plugins.cpu.running.checked_runs import CheckedRuns
from headrace.plugins.cpu.running.profiling import Profiler
from headrace.plugins.cpu.running.runs import HostRuns, Runs
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import ResourceExhausted
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.execution.streams_executor import StreamsExecutor
from headrace.runtime.network.network import Network
from headrace.runtime.network.shapes.ledger import Ledger


class SessionNetwork(ExecutableNetwork):
    """Runs its jobs in an ONNX Runtime session. Each run has run options of its own, which can end
    it. Options that have ended no run serve a later run.

    What it exports names its file of weights, and says what its graph says. With both it opens
    again on this machine without its graph. The file itself is not exported: it doubles the bytes,
    and suits this processor alone.

    Args:
        runs: runs jobs in the network's session or sessions.
        conversion: converts the network's inputs and outputs.
        profiler: runs requests that ask what each layer costs.
        arena: gives back memory of the sessions. Networks that share a session share it.

    Attributes:
        optimized: ONNX Runtime has rewritten the network for all sessions.
        ledger: judges the shapes of each request.
        kept: the name of the file that its session maps; empty if it has none, or other sessions.
        is_isolated: whether its process runs no networks of other devices.
    """

    inline_safe = True
    optimized = True
    ledger: Ledger | None = None
    kept = ""
    is_isolated = False

    def __init__(
        self,
        network: Network,
        config: Configuration,
        executor: StreamsExecutor,
        streams: int,
        runs: Runs,
        conversion: TensorConversion,
        profiler: Profiler,
        arena: Arena,
    ) -> None:
        super().__init__(network, config, executor, streams=streams)
        self.defaults = replaceable(network)
        self._check = PortCheck(self.inputs, self.outputs, self.defaults)
        self._runs: Runs | None = runs
        self._conversion = conversion
        self._profiler = profiler
        self._arena = arena
        # Options, each with the hook that ends its run. Any thread may take and give them back.
        self._spare_options: list[tuple[Any, partial[None]]] = []

    def _infer(self, job: Job) -> None:
        runs = self._runs
        assert runs is not None, "a job after close"
        if self.ledger is not None:
            self.ledger.check(job.inputs)
        try:
            options, terminate = self._spare_options.pop()
        except IndexError:
            options = session.run_options()
            terminate = partial(setattr, options, "terminate", True)
        job.token.attach(terminate)
        try:
            if job.profile:
                job.outputs, job.layers = self._profiler.profile(
                    lambda timed: self._timed_runs(timed)(job, options), self.place.device
                )
            else:
                job.outputs = runs(job, options)
                self._arena.used(job)
        except Exception as error:
            failure = run_failure(error)
            if isinstance(failure, ResourceExhausted):
                # After memory that it did not get, ONNX Runtime takes as much of it as there is,
                # however little the next run needs, and keeps it.
                self._arena.shrink()
            if failure is error:
                raise
            raise failure from error
        finally:
            if job.token.detach(terminate):  # nobody ends a later run by them
                self._spare_options.append((options, terminate))

    def _timed_runs(self, timed: OnnxRuntimeSession) -> Runs:
        """How a request runs in the session that times its layers."""
        return HostRuns(timed, self._conversion)

    def _export(self) -> bytes:
        if not self.kept or not isinstance(self.network, GuardedNetwork):
            return b""
        entry = {
            "isolated": self.is_isolated,
            "network": self.network.to_json(),
            "optimized": self.optimized,
            "weights": self.kept,
        }
        return json.dumps(entry, separators=(",", ":")).encode()

    def _close(self) -> None:
        self._runs = None
        self._spare_options.clear()
        self._profiler.close()


class AcceleratorNetwork(SessionNetwork):
    """Like a network on processors, but the thread that brings a request never runs it, because the
    thread's processor time does not tell how long the run takes. Its requests are checked, also
    those whose layers are timed."""

    inline_safe = False

    def _timed_runs(self, timed: OnnxRuntimeSession) -> Runs:
        assert isinstance(self._runs, CheckedRuns)
        return self._runs.instead(super()._timed_runs(timed))
