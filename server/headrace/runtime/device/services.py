"""What the runtime offers to plugins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.state import DeviceStates
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.timer import Timer
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import Asker

if TYPE_CHECKING:
    from headrace.runtime.device.executable_network import ExecutableNetwork
    from headrace.runtime.device.plugin import Plugin

T = TypeVar("T")


class Devices(Protocol):
    """The other devices, for a device that delegates to them."""

    def plugin(self, device: str) -> Plugin:
        """The plugin of a device type, for example ``CPU``.

        Raises:
            NotFound, Unavailable: there is no such plugin, or it did not start.
        """

    def available(self) -> Mapping[str, list[str]]:
        """Every device type with its AVAILABLE_DEVICES; a type that did not start has none. Looking
        up the devices of a type may start the type's backend."""

    def reasons(self) -> dict[str, str]:
        """The device types that did not start, each with the reason that a client may read."""

    def not_installed(self) -> frozenset[str]:
        """The device types that are not installed or have no hardware to run on, and that the
        operator did not name."""


class Loads(Protocol):
    """Threads for loads that the server begins by itself."""

    def submit(
        self, task: Callable[[], T], token: CancelToken | None = None, asker: Asker | None = None
    ) -> Future[T]:
        """Runs a task on one of the threads. Raises as `LoadExecutor.submit`."""

    def load_for_request(self, task: Callable[[], T], who: str) -> Future[T]:
        """Runs a load that a request waits for. Raises as `LoadExecutor.load_for_request`."""


class LoadedEntry(Protocol):
    """A loaded network that somebody holds a reference to."""

    key: Any
    device: str
    record: Any
    executable: ExecutableNetwork | None


class LoadedNetworks(Protocol):
    """The networks of the server by name, for a device whose networks run others.

    Names are full names. `NetworkRegistry` has the contract.
    """

    def first(self, names: Sequence[str]) -> str: ...

    def acquire(self, name: str, version: str = "") -> LoadedEntry: ...

    def release(self, entry: Any) -> None: ...

    def submit(self, entry: Any, job: Job) -> None: ...

    def serving(self, name: str) -> Mapping[str, int]: ...


class Readers(Protocol):
    """A thread that waits for many descriptors at once and may not wait for anything else, such as
    that of the server's event loop."""

    def add(self, descriptor: int, readable: Callable[[], None]) -> bool:
        """Has `readable` called on that thread whenever the descriptor can be read. Any thread may
        call this. Returns False if the thread has ended."""

    def remove(self, descriptor: int) -> None:
        """Undoes `add`. Only that thread calls this."""


Keep: TypeAlias = Callable[[], Callable[[], None]]
"""Has a network keep a copy that it has lent memory for. Returns what gives that back."""


@contextmanager
def no_budget(*_: object) -> Iterator[Keep]:
    """Memory without a budget."""
    yield lambda: lambda: None


@dataclass(frozen=True, slots=True)
class Services:
    """What the runtime offers to plugins.

    Attributes:
        cache: the cache of compiled networks; None if the server has none.
        weights: files of weights that networks of all processes map; None if there are none.
        readers: reads what other processes send; None if there is no such thread.
        isolated: the plugin is in a process of its own, and the server survives its end.
        folder: the server's own folder, which no client and no other server writes to. A device may
            make a folder of its own name in it, for files that it can do without. None if there is
            no such folder.
        max_load_seconds: for how long a device's process may load or query one network.
        loads: for virtual devices; None in a process of a device.
        networks: the server's networks; None in a process of a device.
        lent: lends memory for one more copy of a network: it is given the network's full name, the
            device, and the network. As `MemoryRoom.lent`.
        with_responses: loads a network that may have a response cache: it is given the whole
            configuration, and what loads the network with the rest of it. None in a process of a
            device.
    """

    executors: ExecutorManager
    timer: Timer
    counters: Counters
    states: DeviceStates
    devices: Devices
    cache: NetworkCache | None = None
    weights: WeightFiles | None = None
    folder: Path | None = None
    readers: Readers | None = None
    isolated: bool = False
    max_load_seconds: float = math.inf
    loads: Loads | None = None
    networks: LoadedNetworks | None = None
    lent: Callable[[str, DeviceName, Network], AbstractContextManager[Keep]] = no_budget
    with_responses: (
        Callable[
            [Mapping[str, str], Callable[[dict[str, str]], ExecutableNetwork]], ExecutableNetwork
        ]
        | None
    ) = None
