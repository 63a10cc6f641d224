"""Loads a network that already serves onto more devices: a better one, or one that had failed.

The loads run on threads that all networks share.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from headrace.plugins.multi.device_list import Candidate, Failure
from headrace.plugins.multi.devices import Blame, Reloads, blame
from headrace.plugins.multi.loading import Member, Ports, load_member
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import Cancelled, HeadraceError, Internal, Unavailable
from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.fair_queue import Entry
from headrace.runtime.execution.stream import Stream, Task
from headrace.runtime.execution.streams_executor import Share
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import asking, current_asker
from headrace.runtime.virtual.networks import set_known

_log = logging.getLogger(__name__)
_EXECUTOR = "late-loads"
_THREADS = 2


class Owner(Protocol):
    """The network that needs the loads. Its methods are called without a lock, and never by two
    loads of one network at once."""

    label: str
    """The network's label in the log."""

    def has(self, device: str) -> bool:
        """Whether the device has been adopted, and is still there."""

    def adopt(self, member: Member, notes: Sequence[str]) -> None:
        """Takes a loaded device, without giving it requests yet."""

    def is_loaded(self, device: str) -> None:
        """Tells the network that the adopted device may get requests."""

    def has_failed(self, failure: Failure) -> None:
        """Tells the network that the device did not load it. `failures` has the failure too."""

    def try_again(self, device: str) -> None:
        """Tells the network that it is time to try the device again. The network calls `start` if
        it still wants the device."""


class LateLoads:
    """Thread-safe: `_lock` guards the failures, the reloads, the alarm, and the keys that were set.
    A device that does not support the network is not tried again. A device that failed for another
    reason is.

    Args:
        original: the network as the caller gave it.
        candidates: the devices that it may be loaded on.
        ports: the network's ports on the devices that have loaded it.
        failures: of the devices that did not load it.
    """

    def __init__(
        self,
        original: Network,
        candidates: Sequence[Candidate],
        ports: Ports,
        failures: Sequence[Failure],
        services: Services,
        owner: Owner,
    ) -> None:
        self._original: Network | None = original
        self._candidates = {each.name: each for each in candidates}
        self._ports = ports
        self._owner = owner
        self._states = services.states
        self._threads = _SharedThreads(services.executors)
        self._lock = threading.Lock()
        self._failures = {each.device: each for each in failures}
        self._reloads = Reloads()
        self._alarm = Alarm(services.timer, self._on_alarm)
        self._changes: dict[str, str] = {}
        self._token = CancelToken()
        self._asker = current_asker()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._is_open = False

    def open(self) -> None:
        """Asks devices again from now on."""
        with self._lock:
            delays = {each.device: self._plan(each) for each in self._failures.values()}
        for device, delay in delays.items():
            if delay is not None:
                _log.info("%s: %s is tried again in %g s", self._owner.label, device, delay)
        self._unsubscribe = self._states.subscribe(self._on_device_event)
        self._is_open = True  # earlier events reported a state and not a change

    def close(self) -> None:
        """Ends a load that is running. Nothing is loaded or tried again afterwards."""
        self._unsubscribe()
        self._token.cancel(Cancelled("the network was unloaded"))
        with self._lock:
            self._alarm.close()
        self._threads.stop()
        self._original = None

    @property
    def failures(self) -> dict[str, Failure]:
        """The failures of devices that are not loaded, by name."""
        with self._lock:
            return dict(self._failures)

    def will_ask(self, device: str) -> bool:
        """Whether a device that has not loaded the network will be tried again."""
        with self._lock:
            return device in self._reloads

    def start(self, device: str) -> None:
        """Loads the network on the device, after earlier requests to load."""
        try:
            self._threads.start(partial(self._load, device))
        except Unavailable as error:
            _log.info("%s: %s is not loaded: %s", self._owner.label, device, error)

    def drop(self, device: str) -> None:
        """Notes that the device is no longer wanted."""
        with self._lock:
            self._reloads.drop(device)

    def want(self, device: str) -> None:
        """Notes that a device that failed is wanted. The device is tried at once."""
        with self._lock:
            failure = self._failures.get(device)
            if failure is None or self._is_closed():
                return
            self._plan(failure)
            self._reloads.up(device, time.monotonic())
            self._alarm.set(self._reloads.wake_at)

    def remember(self, changes: Mapping[str, str]) -> None:
        """Keeps the keys that were set on the network, so that later loads get them too."""
        with self._lock:
            self._changes.update(changes)

    # -- inside --

    def _is_closed(self) -> bool:
        return self._token.cancelled

    def _on_device_event(self, event: DeviceEvent) -> None:
        """Tries a device again that was down when it should have loaded the network."""
        if not self._is_open or event.state is not DeviceState.UP:
            return
        with self._lock:
            for name in self._failures:
                physical = DeviceName.parse(name).physical()
                if any(event.device in {str(each), each.type} for each in physical):
                    self._reloads.up(name, time.monotonic())
            self._alarm.set(self._reloads.wake_at)

    def _on_alarm(self) -> None:
        with self._lock:
            self._alarm.rang()
            if self._is_closed():
                return
            due = self._reloads.due(time.monotonic())
            self._alarm.set(self._reloads.wake_at)
        for device in due:
            self._owner.try_again(device)

    def _plan(self, failure: Failure) -> float | None:
        """In how many seconds to try the device again; None means never. Called under the lock."""
        refused = blame(failure.error) in (Blame.REQUEST, Blame.VALUES)
        if refused or failure.device not in self._candidates or self._is_closed():
            return None
        delay = self._reloads.failed(failure.device, time.monotonic())
        self._alarm.set(self._reloads.wake_at)
        return delay

    def _load(self, device: str) -> None:
        """Loads the network on the device. Runs on a shared thread, so it may take long."""
        original = self._original
        if self._is_closed() or original is None:
            return
        if self._owner.has(device):  # it was wanted again while it was loading
            self.drop(device)
            return
        candidate = self._candidates[device]
        try:
            with asking(self._asker):
                member, notes = load_member(original, candidate, self._token, None, self._ports)
        except Exception as error:  # noqa: BLE001 - whatever a device does, the network serves on
            if not self._is_closed():
                self._failed(device, error)
            return
        if self._is_closed():
            member.executable.close()
            return
        self._owner.adopt(member, notes)
        with self._lock:
            self._failures.pop(device, None)
            self._reloads.drop(device)
        self._catch_up(member)
        _log.info("%s: %s has loaded it", self._owner.label, device)
        self._owner.is_loaded(device)

    def _catch_up(self, member: Member) -> None:
        """Sets the keys on the member that were set on the network before the member was there.
        Repeats this if more keys are set meanwhile."""
        changes: dict[str, str] = {}
        while True:
            with self._lock:
                if changes == self._changes:
                    return
                changes = dict(self._changes)
            self._set(member, changes)

    def _set(self, member: Member, changes: Mapping[str, str]) -> None:
        """Sets the keys on the member. If its device refuses them, it serves without them."""
        try:
            set_known(member.executable, changes)
        except HeadraceError as error:
            _log.warning("%s: %s cannot be set as asked: %s", self._owner.label, member.name, error)

    def _failed(self, device: str, error: Exception) -> None:
        known = error if isinstance(error, HeadraceError) else Internal(f"{error!r}")
        failure = Failure(device, known)
        with self._lock:
            self._failures[device] = failure
        self._owner.has_failed(failure)  # before `try_again`, which an alarm's thread may call
        with self._lock:
            delay = self._plan(failure)
        later = "" if delay is None else f"; it is tried again in {delay:g} s"
        bug = error if isinstance(known, Internal) else None
        _log.warning("%s: %s%s", self._owner.label, failure, later, exc_info=bug)


class _SharedThreads:
    """Runs one network's loads, one after the other. Thread-safe: `_lock` guards the fields."""

    def __init__(self, executors: ExecutorManager) -> None:
        self._executors = executors
        self._lock = threading.Lock()
        self._share: Share | None = None
        self._tasks: list[_Load] = []

    def start(self, action: Callable[[], object]) -> None:
        """Runs the action on one of the threads. The action must not raise.

        Raises:
            Unavailable: the threads have stopped.
        """
        task = _Load(action)
        with self._lock:
            if self._share is None:
                self._share = self._executors.get(_EXECUTOR, _THREADS).share(1)
            self._tasks = [each for each in self._tasks if not each.ended.is_set()]
            self._share.submit(task)
            self._tasks.append(task)

    def stop(self) -> None:
        """Drops loads that have not begun, and waits for the end of those that have. An action must
        not call it."""
        with self._lock:
            tasks, share = self._tasks, self._share
        for task in tasks:
            if share is not None and task.entry is not None and share.remove(task.entry):
                task.ended.set()
        for task in tasks:
            task.ended.wait()


class _Load:
    priority = 0

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self.entry: Entry[Task] | None = None
        self.ended = threading.Event()

    def run(self, stream: int) -> None:
        try:
            self._action()
        finally:
            self.ended.set()

    def depart(self, stream: Stream) -> bool:
        return False

    def fail(self, error: BaseException) -> None:
        self.ended.set()
