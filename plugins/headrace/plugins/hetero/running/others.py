"""The further devices of the list that may run a subgraph.

A device may refuse the values of a request that it finds out about only while it runs, for example
images that are smaller than a window. Then the next device of the list runs the subgraph. It loads
the subgraph when a request first needs it, so that a load costs no more, and keeps it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.services import Loads
from headrace.runtime.errors import Cancelled, HeadraceError, ResourceExhausted
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.system.asker import asking, current_asker
from headrace.runtime.system.graph_memory import free_graphs
from headrace.runtime.virtual.networks import catch_up, set_known

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Other:
    """A device that has loaded the subgraph.

    Attributes:
        rank: its place among the further devices, from 1.
    """

    rank: int
    device: str
    executable: ExecutableNetwork


Then: TypeAlias = Callable[[Other | None], None]
"""Called with the device that is next, or None if there is none."""


class Others:
    """Thread-safe: `_lock` guards all that changes. `then` is called without it.

    Args:
        devices: the names of the further devices, in the order of the list.
        load: loads the subgraph on one of them, or raises a HeadraceError.
        loads: the threads for this; None if there are no further devices.
    """

    def __init__(
        self,
        devices: Sequence[str] = (),
        load: Callable[[str, CancelToken], ExecutableNetwork] | None = None,
        loads: Loads | None = None,
    ) -> None:
        self._devices = tuple(devices)
        self._load = load
        self._loads = loads
        self._asker = current_asker()
        self._token = CancelToken()
        self._lock = threading.Lock()
        self._loaded: dict[int, Other | None] = {}  # by rank; None if the load has failed
        self._changes: Mapping[str, str] = {}
        self._waiting: dict[int, list[Then]] = {}  # for loads that run

    def after(self, rank: int, then: Then) -> None:
        """Calls `then` with the first device after `rank` that runs the subgraph, here or on a
        thread that loads it. The subgraph's own device has the rank 0."""
        rank += 1
        with self._lock:
            while rank in self._loaded and self._loaded[rank] is None:
                rank += 1
            there = self._loaded.get(rank)
            waits = there is None and rank <= len(self._devices) and self._load is not None
            starts = waits and rank not in self._waiting
            if waits:
                self._waiting.setdefault(rank, []).append(then)
        if starts:
            assert self._loads is not None
            try:
                self._loads.load_for_request(partial(self._load_on, rank), self._asker.name)
            except RuntimeError:  # the system has no thread; a later request may have one
                with self._lock:
                    left = self._waiting.pop(rank)
                for each in left:
                    each(None)
        elif not waits:
            then(there)

    def loaded(self) -> list[ExecutableNetwork]:
        """The subgraph on the devices that have loaded it."""
        with self._lock:
            return [each.executable for each in self._loaded.values() if each is not None]

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes keys of the devices that have loaded it, and of those that will."""
        with self._lock:
            self._changes = {**self._changes, **changes}
        for executable in self.loaded():
            set_known(executable, changes)

    def close(self) -> None:
        """Closes what was loaded. No request waits any more."""
        self._token.cancel(Cancelled("the network was unloaded"))
        for each in self.loaded():
            each.close()
        self._load = None
        self._loaded = {}

    def _load_on(self, rank: int) -> None:
        device, load = self._devices[rank - 1], self._load
        other: Other | None = None
        lasts = True
        try:
            assert load is not None, "a job after close"
            with asking(self._asker):
                other = Other(rank, device, load(device, self._token))
        except HeadraceError as error:
            _log.warning("a subgraph was not loaded on %s, too: %s", device, error)
            lasts = not isinstance(error, ResourceExhausted)
        except Exception:  # noqa: BLE001 - the bug of a plugin; the request keeps its own error
            _log.exception("a subgraph was not loaded on %s, too", device)
        free_graphs(wait=False)
        if other is not None:
            catch_up(other.executable, lambda: self._changes, device)
        with self._lock:
            if lasts:
                self._loaded[rank] = other
            waiting = self._waiting.pop(rank)
        if other is not None:
            catch_up(other.executable, lambda: self._changes, device)  # set until it was there
        for then in waiting:
            if other is not None:
                then(other)
            else:
                self.after(rank, then)
