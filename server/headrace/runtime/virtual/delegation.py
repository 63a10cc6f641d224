"""Requests that a virtual device has one device run as they are.

Hardly anything of the virtual device lies in their way, so it adds next to nothing to what the
device takes. The virtual device alone notes their ends. When its notes are counted, what the device
has completed is counted there, too, as parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import partial

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.job import CountParts, Job
from headrace.runtime.metrics.device_counters import DeviceCounters


class DeviceDelegation(ABC):
    """
    Args:
        executable: the device's network. It does not delegate by itself.
        tell: called with the seconds that each of some completed jobs ran.
    """

    __slots__ = ("count", "executable")

    def __init__(
        self,
        executable: ExecutableNetwork,
        tell: Callable[[Collection[float]], object],
    ) -> None:
        self.executable = executable
        # It refers to no network, because notes may outlive it.
        self.count: CountParts = partial(_count, executable.place.counters, tell)

    @abstractmethod
    def completed(self, job: Job) -> None:
        """A job has completed there."""

    @abstractmethod
    def failed(self, job: Job) -> None:
        """A job has failed there. It may be reopened."""

    def fails(self, job: Job) -> None:
        """A job is about to fail there. It ends as any other part does."""
        self.executable.place.counters.accept_part()
        job.observe(self.failed)
        job.observe(self.executable.count_part)


def _count(
    device: DeviceCounters,
    tell: Callable[[Collection[float]], object],
    waits: Collection[float],
    runs: Collection[float],
) -> None:
    device.count_parts(waits, runs)
    tell(runs)
