"""A network that runs requests for OPENVINO: one with known sizes, or one that HETERO has split."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import Cancelled
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, nobody_waits
from headrace.runtime.network.values import Value


class HeldNetwork:
    """Closes its network when it has been dropped and its last run has ended. Thread-safe: `_lock`
    guards `_runs` and `_dropped`; the network is closed without it.

    Args:
        network: belongs to this one.
        where: what runs it, for people.
    """

    def __init__(self, network: ExecutableNetwork, where: str) -> None:
        self.network = network
        self.where = where
        self._token = CancelToken()
        self._lock = threading.Lock()
        self._runs = 0
        self._dropped = False

    def take(self) -> bool:
        """Keeps the network open until `give_back`. Returns False if it has been dropped."""
        with self._lock:
            if self._dropped:
                return False
            self._runs += 1
            return True

    def give_back(self) -> None:
        """Undoes `take`."""
        with self._lock:
            self._runs -= 1
            last = self._dropped and not self._runs
        if last:
            self.network.close()

    def drop(self) -> None:
        """Closes the network, after its runs. What `settle` runs ends soon."""
        with self._lock:
            first, self._dropped = not self._dropped, True
            idle = not self._runs
        self._token.cancel(Cancelled("the network is not needed any more"))
        if first and idle:
            self.network.close()

    def run_beside(self, job: Job) -> Mapping[str, Value]:
        """The outputs for a job that another network answers."""
        mine = Job(job.inputs, nobody_waits, output_names=job.output_names, token=job.token)
        self.network.compute(mine)
        return mine.outputs

    def settled(
        self, inputs: Mapping[str, Value], output_names: tuple[str, ...], most: int
    ) -> HeldNetwork:
        """Runs a request until each part of a split network has been compiled and tried for its
        shapes, but at most `most` times. Call it on the thread that compiles: there the parts do
        not wait for later requests.

        Raises:
            Whatever a part raises.
            Cancelled: it has been dropped.
        """
        if self.take():
            try:
                self._settle(inputs, output_names, most)
            finally:
                self.give_back()
        if self._token.error is not None:
            raise self._token.error
        return self

    def _settle(
        self, inputs: Mapping[str, Value], output_names: tuple[str, ...], most: int
    ) -> None:
        for _ in range(most):
            job = Job(inputs, nobody_waits, output_names=output_names, token=self._token)
            self.network.compute(job)
            if self._token.error is not None or self.network.is_settled():
                return
