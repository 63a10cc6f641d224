"""The networks that the steps of a pipeline run: models of their own, and networks by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.services import LoadedEntry, LoadedNetworks
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, NotFound
from headrace.runtime.execution.job import Job
from headrace.runtime.pipelines.description import PipelineStep
from headrace.runtime.pipelines.ports import StepPorts, check_same

_MAX_FITTING = 64


class StepNetwork(ABC):
    """What a step runs. Thread-safe.

    Attributes:
        name: the full name of a network of the server; empty if it is a model of the step's own.
    """

    name = ""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Checks a part, and submits it.

        Raises:
            InvalidArgument: an input is not as the network declares it.
            FailedPrecondition, Unavailable: there is no such network now.
        """

    @abstractmethod
    @contextmanager
    def held(self) -> Iterator[ExecutableNetwork]:
        """The network, which stays loaded within the context. Raises as `submit`."""

    @property
    def is_shared(self) -> bool:
        """Whether several versions share its requests, so that the next one may get another."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Unloads what belongs to the step alone."""


class OwnNetwork(StepNetwork):
    """A model of the step's own, loaded on its device."""

    def __init__(self, executable: ExecutableNetwork) -> None:
        self._executable = executable

    def submit(self, job: Job) -> None:
        self._executable.check(job)
        self._executable.submit(job)

    @contextmanager
    def held(self) -> Iterator[ExecutableNetwork]:
        yield self._executable

    def close(self) -> None:
        self._executable.close()


class NamedNetwork(StepNetwork):
    """A network of the server. Each part goes to the version that serves when it comes.

    Args:
        name: its full name.
        version: empty for the version that serves.
        ports: as they were when the pipeline was loaded.
    """

    def __init__(
        self,
        networks: LoadedNetworks,
        name: str,
        step: PipelineStep,
        ports: StepPorts,
        generation: int,
    ) -> None:
        self._networks = networks
        self.name = name
        self._step = step
        self._ports = ports
        self._fitting = {generation: None}  # single operations on a dict are atomic

    def submit(self, job: Job) -> None:
        entry = self._acquire()
        try:
            executable = entry.executable
            assert executable is not None
            if entry.key.generation not in self._fitting:
                self._check(executable)
                if len(self._fitting) > _MAX_FITTING:
                    self._fitting.clear()
                self._fitting[entry.key.generation] = None
            executable.check(job)
        except BaseException:
            self._networks.release(entry)
            raise
        self._networks.submit(entry, job)

    @contextmanager
    def held(self) -> Iterator[ExecutableNetwork]:
        entry = self._acquire()
        try:
            assert entry.executable is not None
            yield entry.executable
        finally:
            self._networks.release(entry)

    @property
    def is_shared(self) -> bool:
        return not self._step.version and len(self._networks.serving(self.name)) > 1

    def close(self) -> None:
        """Does nothing: the network is somebody else's."""

    def _acquire(self) -> LoadedEntry:
        try:
            return self._networks.acquire(self.name, self._step.version)
        except NotFound as error:
            raise FailedPrecondition(error.message) from error

    def _check(self, executable: ExecutableNetwork) -> None:
        try:
            check_same(self._step, self._ports, ports_of_network(executable))
        except InvalidArgument as error:
            raise FailedPrecondition(error.message) from error


def ports_of_network(executable: ExecutableNetwork) -> StepPorts:
    """What the network of a step takes and gives."""
    return StepPorts(executable.inputs, executable.outputs, executable.defaults)
