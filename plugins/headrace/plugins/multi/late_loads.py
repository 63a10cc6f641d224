"""Loads of a network that serves already: onto a better device, or onto one that had failed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from headrace.plugins.multi.background import Background
from headrace.plugins.multi.blame import Blame, blame
from headrace.plugins.multi.lists import Candidate, Failure
from headrace.plugins.multi.loading import Ports, load_member
from headrace.plugins.multi.member import Member
from headrace.plugins.multi.reloads import Reloads
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import Cancelled, HeadraceError, Internal, Unavailable
from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """Who wants the loads. Called without a lock, never by two loads of one network at once."""

    label: str
    """Of the network, for the log."""

    def has(self, device: str) -> bool:
        """Whether the device has been adopted, and is still there."""

    def adopt(self, member: Member, notes: Sequence[str]) -> None:
        """Takes a loaded device, without giving it requests yet."""

    def is_loaded(self, device: str) -> None:
        """The device, which has been adopted, may get requests."""

    def has_failed(self, failure: Failure) -> None:
        """The device did not load the network; `failures` has it too."""

    def try_again(self, device: str) -> None:
        """The time has come to ask a device again: to `start` it, if it is still wanted."""


class LateLoads:
    """Thread-safe; `_lock` guards the failures, the reloads, the alarm, and what was set. A device
    that does not support the network is not asked again; one that has failed otherwise is.

    Args:
        given: the network as it came.
        candidates: the devices that it may be loaded on.
        ports: of those that have loaded it.
        failures: of those that did not.
    """

    def __init__(
        self,
        given: Network,
        candidates: Sequence[Candidate],
        ports: Ports,
        failures: Sequence[Failure],
        services: Services,
        owner: Owner,
    ) -> None:
        self._given: Network | None = given
        self._candidates = {each.name: each for each in candidates}
        self._ports = ports
        self._owner = owner
        self._states = services.states
        self._background = Background(services.executors)
        self._lock = threading.Lock()
        self._failures = {each.device: each for each in failures}
        self._reloads = Reloads()
        self._alarm = Alarm(services.timer, self._ring)
        self._changes: dict[str, str] = {}
        self._token = CancelToken()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._hears = False

    def open(self) -> None:
        """Asks devices again from now on."""
        with self._lock:
            delays = {each.device: self._plan(each) for each in self._failures.values()}
        for device, delay in delays.items():
            if delay is not None:
                _log.info("%s: %s is tried again in %g s", self._owner.label, device, delay)
        self._unsubscribe = self._states.subscribe(self._hear)
        self._hears = True  # what it heard before was how things are, and no change

    def close(self) -> None:
        """Ends a load under way. Nothing is loaded or asked again afterwards."""
        self._unsubscribe()
        self._token.cancel(Cancelled("the network was unloaded"))
        with self._lock:
            self._alarm.close()
        self._background.stop()
        self._given = None

    @property
    def failures(self) -> dict[str, Failure]:
        """Of devices that are not loaded, by name."""
        with self._lock:
            return dict(self._failures)

    def will_ask(self, device: str) -> bool:
        """Whether a device that is not loaded will be asked again."""
        with self._lock:
            return device in self._reloads

    def start(self, device: str) -> None:
        """Loads the network on the device, after the loads that were asked for before."""
        try:
            self._background.start(partial(self._load, device))
        except Unavailable as error:
            _log.info("%s: %s is not loaded: %s", self._owner.label, device, error)

    def drop(self, device: str) -> None:
        """Nobody wants the device any more."""
        with self._lock:
            self._reloads.drop(device)

    def want(self, device: str) -> None:
        """Somebody wants a device that failed: it is asked at once."""
        with self._lock:
            failure = self._failures.get(device)
            if failure is None or self._is_closed():
                return
            self._plan(failure)
            self._reloads.up(device, time.monotonic())
            self._alarm.set(self._reloads.wake_at)

    def remember(self, changes: Mapping[str, str]) -> None:
        """What was set on the network counts for the loads to come, too."""
        with self._lock:
            self._changes.update(changes)

    # -- inside --

    def _is_closed(self) -> bool:
        return self._token.cancelled

    def _hear(self, event: DeviceEvent) -> None:
        """A device that was down when it was to load the network gets another chance."""
        if not self._hears or event.state is not DeviceState.UP:
            return
        with self._lock:
            for name in self._failures:
                physical = DeviceName.parse(name).physical()
                if any(event.device in {str(each), each.type} for each in physical):
                    self._reloads.up(name, time.monotonic())
            self._alarm.set(self._reloads.wake_at)

    def _ring(self) -> None:
        with self._lock:
            self._alarm.rang()
            if self._is_closed():
                return
            due = self._reloads.due(time.monotonic())
            self._alarm.set(self._reloads.wake_at)
        for device in due:
            self._owner.try_again(device)

    def _plan(self, failure: Failure) -> float | None:
        """When to ask the device again, in seconds; None: never. Called under the lock."""
        refused = blame(failure.error) in (Blame.REQUEST, Blame.VALUES)
        if refused or failure.device not in self._candidates or self._is_closed():
            return None
        delay = self._reloads.failed(failure.device, time.monotonic())
        self._alarm.set(self._reloads.wake_at)
        return delay

    def _load(self, device: str) -> None:
        """On a thread that may take its time."""
        given = self._given
        if self._is_closed() or given is None:
            return
        if self._owner.has(device):  # it was wanted again while it was loading
            self.drop(device)
            return
        candidate = self._candidates[device]
        try:
            member, notes = load_member(given, candidate, self._token, None, self._ports)
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
        """Sets what was set before the member was there, again if that changes meanwhile."""
        changes: dict[str, str] = {}
        while True:
            with self._lock:
                if changes == self._changes:
                    return
                changes = dict(self._changes)
            self._set(member, changes)

    def _set(self, member: Member, changes: Mapping[str, str]) -> None:
        """Has the device be as the others were set meanwhile; one that refuses serves as it is."""
        known = member.executable.config.schema
        own = {key: text for key, text in changes.items() if key in known}
        if not own:
            return
        try:
            member.executable.set_config(own)
        except HeadraceError as error:
            _log.warning("%s: %s cannot be set as asked: %s", self._owner.label, member.name, error)

    def _failed(self, device: str, error: Exception) -> None:
        known = error if isinstance(error, HeadraceError) else Internal(f"{error!r}")
        failure = Failure(device, known)
        with self._lock:
            self._failures[device] = failure
            delay = self._plan(failure)
        later = "" if delay is None else f"; it is tried again in {delay:g} s"
        bug = error if isinstance(known, Internal) else None
        _log.warning("%s: %s%s", self._owner.label, failure, later, exc_info=bug)
        self._owner.has_failed(failure)
