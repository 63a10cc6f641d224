"""The devices of a list that have a network. Others load it while it serves; some give it up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

from headrace.plugins.multi.choice import Choice, Instruction, LoadDevice, Serve
from headrace.plugins.multi.config import PRIORITIES
from headrace.plugins.multi.device_list import Candidate, Failure, Policy, read_priorities
from headrace.plugins.multi.loading import DeviceNetwork, load_member, ports_of
from headrace.plugins.multi.ranking import is_slow
from headrace.plugins.multi.running.counters import MemberCounters
from headrace.plugins.multi.running.pool import DevicePool, silent
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.key import config_field
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import (
    Cancelled,
    FailedPrecondition,
    HeadraceError,
    Internal,
    NotFound,
    Stopped,
    Unavailable,
)
from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Delegation
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import current_asker
from headrace.runtime.virtual.networks import catch_up, set_known

_log = logging.getLogger(__name__)

_Event: TypeAlias = "Callable[[Collection[str], float], list[Instruction]]"


class PoolMembers:
    """Does what `Choice` decides: has devices load the network, join the pool and leave it.

    Thread-safe: `_lock` guards the members, the choice, the numbers of requests, the keys that were
    set, and the alarm. The thread that reports an event follows the choice's instructions, without
    the lock.

    Args:
        original: the network as the caller gave it, for later loads.
        candidates: the devices that may serve it, the preferred one first.
        members: the devices that have loaded it. They are closed with the pool.
        failures: of the devices that have not loaded it.

    Attributes:
        counts: how many requests each device gets at once; None means as many as it runs.
        label: the network's label in the log.
        arrivals: how often a device has loaded the network, or has come up again.
        copies: what gives back the memory that copies on further devices have been lent.
    """

    def __init__(
        self,
        original: Network,
        candidates: Sequence[Candidate],
        members: Sequence[DeviceNetwork],
        failures: Sequence[Failure],
        services: Services,
        policy: Policy,
    ) -> None:
        self._original: Network | None = original
        self.candidates = {candidate.name: candidate for candidate in candidates}
        self._ports = ports_of(members[0].executable)
        self.services = services
        self.policy = policy
        self._lock = threading.Lock()
        self._members = {member.name: member for member in members}
        self.counts = {candidate.name: candidate.count for candidate in candidates}
        self._choice = Choice(
            [*self.candidates],
            [*self._members],
            failures,
            time.monotonic(),
            all_of_them=policy.all_of_them,
            fallback=policy.fallback,
        )
        self._changes: Mapping[str, str] = {}  # replaced, never changed
        self._alarm = Alarm(services.timer, self._on_alarm)
        self.copies: list[Callable[[], None]] = []  # single operations on it are atomic, too
        self._loading: set[Future[None]] = set()  # single operations on a set are atomic
        self._token = CancelToken()
        self._asker = current_asker()
        self._counters = MemberCounters()
        self.label = ""
        self.arrivals = 0
        self._given_up: list[DeviceNetwork] | None = None
        self._pool: DevicePool | None = None
        self._note: Callable[..., object] = silent
        self._changed: Callable[[], object] = silent
        self._unsubscribe: Callable[[], object] = silent

    @property
    def pool(self) -> DevicePool:
        assert self._pool is not None, "the network is not open"
        return self._pool

    def open(
        self,
        place: Place,
        *,
        delegate: Callable[[Delegation | None], object],
        note: Callable[..., object],
        changed: Callable[[], object],
    ) -> None:
        """
        Args:
            delegate: as for `DevicePool`.
            note: called with notes. They replace those that begin as the first argument does.
            changed: called when other devices have the network or serve, or take other numbers of
                requests.
        """
        self.label = place.device
        self._note, self._changed = note, changed
        pool = DevicePool(
            place.device,
            [member for member in self.all() if member.name in self._choice.order],
            place.timer,
            self.services.states,
            spill=self.policy.spill,
            delegate=delegate,
            changed=self._look,
        )
        self._unsubscribe = self.services.states.subscribe(self._on_device_event)
        self._pool = pool  # earlier events reported a state and not a change
        self._look()

    def count_with(self, label: str, counters: MemberCounters) -> None:
        """Uses this label in the log, and these counters, from now on."""
        self.label = label
        with self._lock:
            self._counters = counters
            for device in self._choice.failures:
                counters.not_loaded(device).add(1)
        self.pool.count_with(label, counters)

    def close(self) -> None:
        self._unsubscribe()
        self._token.cancel(Cancelled("the network was unloaded"))
        with self._lock:
            self._alarm.close()
        for loading in list(self._loading):
            loading.exception()  # waits for its end
        self._original = None
        if self._pool is not None:
            self._pool.close()
        for member in self.all():
            member.executable.close()
        self._note = self._changed = silent  # they refer to the owner

    # -- the present state --

    def all(self) -> Sequence[DeviceNetwork]:
        """All members, including members that are not in the list."""
        with self._lock:
            return [*self._members.values()]

    def order(self) -> dict[str, int | None]:
        """The wanted devices, the preferred one first, each with how many requests it gets at once;
        None for a device that is not in the pool and has no number."""
        limits = self.pool.limits()
        with self._lock:
            return {name: limits.get(name, self.counts[name]) for name in self._choice.order}

    def states(self) -> dict[str, str]:
        """The states of all devices, including devices that have not loaded the network."""
        with self._lock:
            failures, loading = self._choice.failures, self._choice.loading
            missing = self._choice.not_loaded
        return (
            self.pool.availabilities()
            | {name: "loading" if name == loading else "not loaded" for name in missing}
            | {name: f"failed: {failure.reason}" for name, failure in failures.items()}
        )

    # -- changes --

    def order_of(self, text: str) -> dict[str, int | None]:
        """The order that MULTI_DEVICE_PRIORITIES gives.

        Raises:
            NotFound: it lists a device that was not in the list of the load, or that does not
                support the network.
            FailedPrecondition: none of the devices that it lists has loaded the network yet.
        """
        listed = read_priorities(text, self.services.devices.available())
        field = config_field(PRIORITIES.name)
        order = {str(device.device): device.count for device in listed}
        with self._lock:
            loaded, failures = {*self._members}, self._choice.failures
            known = {name for name in self.candidates if self._choice.knows(name)}
        for name in order:
            if name not in known:
                raise NotFound.unknown("device of this network", name, known, field=field)
        if not loaded & order.keys():
            reasons = "; ".join(str(failures[name]) for name in order if name in failures)
            raise FailedPrecondition(
                f"none of the devices has loaded the network; {reasons}", field=field
            )
        return order

    def set_config(self, changes: Mapping[str, str], order: Mapping[str, int | None]) -> None:
        """Changes the devices' keys, and those of later loads. Sets the order if there is one."""
        with self._lock:
            self._changes = {**self._changes, **changes}
            self.counts.update(order)
        for member in self.all():
            set_known(member.executable, changes)
        if order:
            self._ask(partial(self._choice.arrange, order))

    # -- the choice --

    def _ask(self, event: _Event) -> None:
        serving = [member.name for member in self.pool.serving]
        with self._lock:
            todo = [] if self._token.cancelled else event(serving, time.monotonic())
            self._alarm.set(self._choice.wake_at)
        for instruction in todo:
            self._follow(instruction)

    def _follow(self, instruction: Instruction) -> None:
        if isinstance(instruction, LoadDevice):
            self._begin(instruction.device)
        elif isinstance(instruction, Serve):
            self._arrange()
            _log.info("%s is on %s now", self.label, ", ".join(instruction.devices))
        else:
            with self._lock:
                member = self._members.pop(instruction.device)
            self.pool.when_empty(member, partial(self._unload, member))

    def _arrange(self) -> None:
        """Gives the pool the order, and repeats this until the order no longer changes. While the
        pool takes an order, a device may load the network, or a caller may set another order."""
        arranged, order = None, self._limits()
        while order != arranged:
            self.pool.arrange(order)
            arranged, order = order, self._limits()
        self._changed()

    def _limits(self) -> list[tuple[DeviceNetwork, int | None]]:
        """The members that serve, in order, with the numbers of requests that the list gives."""
        with self._lock:
            return [
                (self._members[device], self.counts[device])
                for device in self._choice.serve.devices
            ]

    def _look(self) -> None:
        """A member was taken out or put back, or takes another number of requests."""
        if self._pool is not None:  # None: a device is down already, and `open` looks soon
            self._ask(self._choice.look)
            self._changed()

    def _on_alarm(self) -> None:
        with self._lock:
            self._alarm.rang()
        self._ask(self._choice.look)

    def _on_device_event(self, event: DeviceEvent) -> None:
        """Tries a device again that was down when it should have loaded the network."""
        if self._pool is None or event.state is not DeviceState.UP:
            return
        with self._lock:
            self.arrivals += 1
            failures = self._choice.failures
        up = [
            name
            for name in failures
            for physical in DeviceName.parse(name).physical()
            if event.device in {str(physical), physical.type}
        ]
        if up:
            self._ask(partial(self._choice.up, up))

    def _unload(self, member: DeviceNetwork) -> None:
        with self._lock:
            if self._given_up is not None:  # the measurement that may run it unloads it
                self._given_up.append(member)
                return
        member.executable.close()
        with suppress(IndexError):  # it has lent nothing
            self.copies.pop()()  # each takes the same

    # -- loads while it serves --

    def _begin(self, device: str) -> None:
        """Loads the network on the device, on a thread for loads."""
        if device in self.policy.slow:
            _log.warning("%s: %s", self.label, is_slow(device))
        assert self.services.loads is not None
        load = partial(self._load, device)
        try:
            loading = self.services.loads.submit(load, self._token, self._asker)
        except HeadraceError as error:
            self._has_failed(Failure(device, error))
            return
        self._loading.add(loading)
        loading.add_done_callback(self._loading.discard)

    def _load(self, device: str) -> None:
        """Loads the network on the device. It may take long."""
        try:
            original, candidate = self.original(), self.candidates[device]
            on = candidate.target.device
            with self.services.lent(self.policy.full_name, on, original) as keep:
                member, notes = load_member(original, candidate, self._token, None, self._ports)
                self.copies.append(keep())
        except Exception as error:  # noqa: BLE001 - whatever a device does, the network serves on
            if not self._token.cancelled and not isinstance(error, Stopped):
                known = error if isinstance(error, HeadraceError) else Internal(f"{error!r}")
                self._has_failed(Failure(device, known), error)
            return
        with self._lock:
            closed = self._token.cancelled
            if not closed:
                self._members[device] = member
                self.arrivals += 1  # a measurement may begin as soon as the choice knows it
        if closed:
            member.executable.close()
            return
        self._catch_up(member)
        self._note(Failure.said_of(device), *notes)
        _log.info("%s: %s has loaded it", self.label, device)
        self._ask(self._choice.loaded)

    def _has_failed(self, failure: Failure, error: BaseException | None = None) -> None:
        self._note(Failure.said_of(failure.device), str(failure))
        bug = error if isinstance(failure.error, Internal) else None
        _log.warning("%s: %s", self.label, failure, exc_info=bug)

        def failed(serving: Collection[str], now: float) -> list[Instruction]:
            # Once: `count_as` counts earlier failures.
            self._counters.not_loaded(failure.device).add(1)
            return self._choice.failed(failure, serving, now)

        self._ask(failed)

    def _catch_up(self, member: DeviceNetwork) -> None:
        catch_up(member.executable, lambda: self._changes, f"{self.label}: {member.name}")

    # -- measurements --

    @contextmanager
    def kept(self) -> Iterator[None]:
        """For as long as the context lasts, no device closes the network that it gives up: a
        measurement may run it."""
        with self._lock:
            self._given_up = []
        try:
            yield
        finally:
            with self._lock:
                given_up, self._given_up = self._given_up, None
            for member in given_up:
                self._unload(member)

    def original(self) -> Network:
        """The network as it was given. Raises Unavailable if it has been closed."""
        original = self._original
        if original is None:
            raise Unavailable("the network has been closed")
        return original

    def present(self) -> str:
        """The device that serves; empty if that may change at any moment."""
        with self._lock:
            if self._choice.loading is not None:
                return ""
            first = self._choice.serve.devices[:1]
        serving = [member.name for member in self.pool.serving[:1]]
        return serving[0] if serving == [*first] else ""

    def loaded(self, device: str) -> ExecutableNetwork | None:
        """The network on this device, if it serves or stands by there."""
        with self._lock:
            member = self._members.get(device)
        return member.executable if member is not None else None

    def load_apart(self, device: str, token: CancelToken) -> DeviceNetwork:
        """Loads the network on the device. The result belongs to the caller. Raises as a load."""
        assert self.services.loads is not None
        load = partial(
            load_member, self.original(), self.candidates[device], token, None, self._ports
        )
        member, _ = self.services.loads.submit(load, token, self._asker).result()
        return member

    def prefer(self, device: str, member: DeviceNetwork | None) -> bool:
        """Has the device serve from now on.

        Args:
            member: the network on the device, if it has not been loaded there. It is one of these
                afterwards.

        Returns:
            False if that cannot be done now.
        """
        done = False

        def prefer(serving: Collection[str], now: float) -> list[Instruction]:
            nonlocal done
            if self._choice.loading is not None or (member is None) != (device in self._members):
                return []
            if member is not None:
                self._members[device] = member
            done = True
            return self._choice.prefer(device, serving, now)

        if member is not None:
            self._catch_up(member)
        self._ask(prefer)
        if done and member is not None:
            self._catch_up(member)  # with what was set until it was there
        return done
