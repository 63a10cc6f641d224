"""A network that several devices serve. It is loaded on more of them while it serves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from headrace.plugins.multi.choice import Choice, Instruction, LoadDevice, Serve
from headrace.plugins.multi.config import PRIORITIES
from headrace.plugins.multi.contest import DeviceSpeed, to_texts
from headrace.plugins.multi.device_list import Candidate, Failure, read_priorities
from headrace.plugins.multi.loading import DeviceNetwork, export, load_member, ports_of
from headrace.plugins.multi.measuring import Measuring
from headrace.plugins.multi.ranking import is_slow
from headrace.plugins.multi.running.counters import MemberCounters
from headrace.plugins.multi.running.pool import DevicePool
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.key import config_field
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.config.standard_keys import (
    ALLOW_AUTO_BATCHING,
    CACHE_DIR,
    INFERENCE_NUM_THREADS,
    NUM_STREAMS,
)
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
from headrace.runtime.execution.background import Background
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Delegation
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.metrics.counters import NetworkCounters
from headrace.runtime.network.network import Layer, Network
from headrace.runtime.system.asker import current_asker
from headrace.runtime.transform.warm_up import WarmUp
from headrace.runtime.virtual.networks import (
    catch_up,
    execution_devices,
    optimal_requests,
    set_known,
    showing,
)

_log = logging.getLogger(__name__)

_CHOSEN: Final = (NUM_STREAMS, INFERENCE_NUM_THREADS, ALLOW_AUTO_BATCHING)

_CHOSE: Final = "measured: "
"""The beginning of the note about a measurement."""

_Event: TypeAlias = "Callable[[Collection[str], float], list[Instruction]]"


@dataclass(frozen=True, slots=True)
class Way:
    """How a virtual device uses the devices of its list.

    Attributes:
        all_of_them, fallback: as for `Choice`.
        spill: as for `Schedule`.
        slow: devices that serve only if no other one does.
        measured: the devices of which the fastest one is to serve; fewer than two for none.
        throughput: whether the fastest one is the one with the most requests in a second.
        full_name: of the network; empty for a part of another one.
        warm_up: as in `Load`, for the measurement.
        background: where they are measured.
    """

    all_of_them: bool
    fallback: bool = True
    spill: bool = True
    slow: frozenset[str] = frozenset()
    measured: tuple[str, ...] = ()
    throughput: bool = False
    full_name: str = ""
    warm_up: WarmUp | None = None
    background: Background | None = None


class PooledNetwork(ExecutableNetwork):
    """Owns no streams: each request runs on the streams of the device that gets it.

    The choice says which devices are to have the network, and this class follows its instructions.
    With MULTI you can set MULTI_DEVICE_PRIORITIES to give the devices another order or other limits
    while the network runs.

    Thread-safe: `_lock` guards the members, the choice, the numbers of requests, the keys that were
    set, the notes, the alarm, and changes of the configuration. The thread that reports an event
    follows the choice's instructions, without the lock.

    Args:
        original: the network as the caller gave it, for later loads.
        candidates: the devices that may serve it, the preferred one first.
        members: the devices that have loaded it. They are closed with the network.
        failures: of the devices that have not loaded it.

    Attributes:
        copies: as for `MeasuredNetwork`.
    """

    delegates = True

    def __init__(
        self,
        original: Network,
        candidates: Sequence[Candidate],
        members: Sequence[DeviceNetwork],
        failures: Sequence[Failure],
        config: Configuration,
        services: Services,
        way: Way,
    ) -> None:
        first = members[0].executable
        super().__init__(first.network, config)
        # Each device has preprocessed and transformed the network by itself.
        self.inputs, self.outputs = first.inputs, first.outputs
        for member in members:
            self._take_defaults_of(member)
        self.label = ""
        self._original: Network | None = original
        self._candidates = {candidate.name: candidate for candidate in candidates}
        self._ports = ports_of(first)
        self._services = services
        self._way = way
        self._lock = threading.Lock()
        self._members = {member.name: member for member in members}
        self._counts = {candidate.name: candidate.count for candidate in candidates}
        self._choice = Choice(
            [*self._candidates],
            [*self._members],
            failures,
            time.monotonic(),
            all_of_them=way.all_of_them,
            fallback=way.fallback,
        )
        self._changes: dict[str, str] = {}
        self._alarm = Alarm(services.timer, self._on_alarm)
        self.copies: list[Callable[[], None]] = []  # single operations on it are atomic, too
        self._loading: set[Future[None]] = set()  # single operations on a set are atomic
        self._token = CancelToken()
        self._asker = current_asker()
        self._counters = MemberCounters()
        self._pool: DevicePool | None = None
        self._hears = False
        self._unfollow: list[Callable[[], object]] = []
        self._measuring: Measuring | None = None
        if way.background is not None and len(way.measured) > 1 and services.loads is not None:
            self._measuring = Measuring(
                self,
                self.inputs,
                self._request_shapes,
                way.warm_up,
                [self._candidates[name] for name in way.measured],
                services,
                way.background,
                throughput=way.throughput,
                full_name=way.full_name,
                folder=config[CACHE_DIR],
                told=self._note_choice,
            )

    @property
    def pool(self) -> DevicePool:
        assert self._pool is not None, "the network is not open"
        return self._pool

    def open(self, place: Place) -> None:
        super().open(place)
        self.label = place.device
        self._pool = DevicePool(
            place.device,
            [member for member in self._loaded() if member.name in self._choice.order],
            place.timer,
            self._services.states,
            spill=self._way.spill,
            delegate=self._delegate,
            changed=self._members_changed,
        )
        self._start = self._pool.submit
        self._unfollow.append(self._services.executors.subscribe(self._follow_streams))
        self._unfollow.append(self._services.states.subscribe(self._on_device_event))
        self._hears = True  # earlier events reported a state and not a change
        self._members_changed()

    def count_as(self, name: str, counters: NetworkCounters) -> None:
        super().count_as(name, counters)
        self.label = f"network {name!r}"
        with self._lock:
            self._counters = MemberCounters(counters.series)
            for device in self._choice.failures:
                self._counters.not_loaded(device).add(1)
        self.pool.count_with(self.label, self._counters)
        if self._measuring is not None:
            self._measuring.begin(name)

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes the devices' keys too, and the keys of later loads.

        Raises:
            NotFound: MULTI_DEVICE_PRIORITIES lists a device that was not in the list of the load,
                or that does not support the network.
            FailedPrecondition: none of the devices that it lists has loaded the network yet.
            As `ExecutableNetwork.set_config`.
        """
        self.config.changed(changes)  # raises before anything is changed
        order = self._read(changes[PRIORITIES.name]) if PRIORITIES.name in changes else {}
        with self._lock:
            self._changes.update(changes)
            super().set_config(changes)
            self._counts.update(order)
        for member in self._loaded():
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
            close: Callable[[], object] = partial(self._unload, member)
            if self._measuring is not None:
                close = partial(self._measuring.when_done, close)
            self.pool.when_empty(member, close)

    def _arrange(self) -> None:
        """Gives the pool the order, and repeats this until the order no longer changes. While the
        pool takes an order, a device may load the network, or a caller may set another order."""
        arranged, order = None, self._limits()
        while order != arranged:
            self.pool.arrange(order)
            arranged, order = order, self._limits()
        self._show()

    def _limits(self) -> list[tuple[DeviceNetwork, int | None]]:
        """The members that serve, in order, with the numbers of requests that the list gives."""
        with self._lock:
            return [
                (self._members[device], self._counts[device])
                for device in self._choice.serve.devices
            ]

    def _members_changed(self) -> None:
        """A member was taken out or put back, or takes another number of requests."""
        if self._pool is not None:  # None: a device is down already, and `open` looks soon
            self._ask(self._choice.look)
            self._show()

    def _on_alarm(self) -> None:
        with self._lock:
            self._alarm.rang()
        self._ask(self._choice.look)

    def _on_device_event(self, event: DeviceEvent) -> None:
        """Tries a device again that was down when it should have loaded the network."""
        if not self._hears or event.state is not DeviceState.UP:
            return
        if (measuring := self._measuring) is not None:
            measuring.again()
        up = [
            name
            for name in self._failures()
            for physical in DeviceName.parse(name).physical()
            if event.device in {str(physical), physical.type}
        ]
        if up:
            self._ask(partial(self._choice.up, up))

    def _unload(self, member: DeviceNetwork) -> None:
        member.executable.close()
        with suppress(IndexError):  # it has lent nothing
            self.copies.pop()()  # each takes the same

    # -- loads while it serves --

    def _begin(self, device: str) -> None:
        """Loads the network on the device, on a thread for loads."""
        if device in self._way.slow:
            _log.warning("%s: %s", self.label, is_slow(device))
        assert self._services.loads is not None
        load = partial(self._load, device)
        try:
            loading = self._services.loads.submit(load, self._token, self._asker)
        except HeadraceError as error:
            self._has_failed(Failure(device, error))
            return
        self._loading.add(loading)
        loading.add_done_callback(self._loading.discard)

    def _load(self, device: str) -> None:
        """Loads the network on the device. It may take long."""
        original = self._original
        if original is None:  # the network has been closed
            return
        try:
            candidate = self._candidates[device]
            on = candidate.target.device
            with self._services.lent(self._way.full_name, on, original) as keep:
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
        if closed:
            member.executable.close()
            return
        self._take_defaults_of(member)
        self._catch_up(member)
        self.loaded_from_cache |= member.executable.loaded_from_cache
        self._note(Failure.said_of(device), *notes)
        _log.info("%s: %s has loaded it", self.label, device)
        if (measuring := self._measuring) is not None:
            measuring.again()  # first: a measurement may begin as soon as the choice knows it
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
        catch_up(member.executable, self._present_changes, f"{self.label}: {member.name}")

    def _present_changes(self) -> Mapping[str, str]:
        with self._lock:
            return dict(self._changes)

    def _note(self, start: str, *notes: str) -> None:
        """Adds notes in the place of those that begin so."""
        with self._lock:
            self.notes = (*(each for each in self.notes if not each.startswith(start)), *notes)

    # -- measurements --

    def original(self) -> Network:
        original = self._original
        if original is None:
            raise Unavailable("the network has been closed")
        return original

    def present(self) -> str:
        with self._lock:
            if self._choice.loading is not None:
                return ""
            first = self._choice.serve.devices[:1]
        serving = [member.name for member in self.pool.serving[:1]]
        return serving[0] if serving == [*first] else ""

    def loaded(self, device: str) -> ExecutableNetwork | None:
        with self._lock:
            member = self._members.get(device)
        return member.executable if member is not None else None

    def load_apart(self, device: str, token: CancelToken) -> DeviceNetwork:
        assert self._services.loads is not None
        load = partial(
            load_member, self.original(), self._candidates[device], token, None, self._ports
        )
        member, _ = self._services.loads.submit(load, token, self._asker).result()
        return member

    def prefer(self, device: str, member: DeviceNetwork | None) -> bool:
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
            self._take_defaults_of(member)
            self._catch_up(member)
        self._ask(prefer)
        if done and member is not None:
            self._catch_up(member)  # with what was set until it was there
        return done

    def _note_choice(self, note: str) -> None:
        self._note(_CHOSE, _CHOSE + note)
        _log.info("%s: %s", self.label, note)

    # -- hooks --

    def _close(self) -> None:
        measuring, self._measuring = self._measuring, None  # they refer to each other
        if measuring is not None:
            measuring.close()
        for unfollow in self._unfollow:
            unfollow()
        self._token.cancel(Cancelled("the network was unloaded"))
        with self._lock:
            self._alarm.close()
        for loading in list(self._loading):
            loading.exception()  # waits for its end
        self._original = None
        if self._pool is not None:
            self._pool.close()
        for member in self._loaded():
            member.executable.close()

    def _export(self) -> bytes:
        """What all devices export, or what the one that serves does, if one is chosen."""
        return export(self._loaded() if self._way.all_of_them else [self._front()])

    def _layers(self) -> tuple[Layer, ...]:
        """The layers of every device. Each device has made its own graph of the network."""
        return tuple(layer for member in self._loaded() for layer in member.executable.layers())

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {
            **({} if self._way.all_of_them else {"CANDIDATES": self._rows}),
            "DEVICE_STATES": self._states,
            "DEVICE_REQUESTS": self._completed,
            "NUMBER_OF_WAITING_INFER_REQUESTS": lambda: self.pool.waiting,
            "NUMBER_OF_EXEC_INFER_REQUESTS": lambda: self.pool.running,
        }

    def _optimal_number_of_infer_requests(self) -> int:
        """The number of requests that the serving devices together run at once."""
        serving = self._serving()
        return sum(self._counts[each.name] or optimal_requests(each.executable) for each in serving)

    def _execution_devices(self) -> list[str]:
        return execution_devices(member.executable for member in self._serving())

    def works(self, up: Mapping[str, bool]) -> bool:
        """One device that is up serves for all."""
        return any(up.get(device, True) for device in self._execution_devices())

    def _delegate(self, delegation: Delegation | None) -> None:
        self._delegation = delegation

    def _follow_streams(self) -> None:
        self.pool.follow()

    # -- inside --

    def _take_defaults_of(self, member: DeviceNetwork) -> None:
        """Lets requests give what the member can replace. Others refuse such a request, which is
        then the member's."""
        more = {port.name: port for port in (*self.defaults, *member.executable.defaults)}
        self.defaults = tuple(more.values())
        self._check = PortCheck(self.inputs, self.outputs, self.defaults)

    def _read(self, text: str) -> dict[str, int | None]:
        """The order that MULTI_DEVICE_PRIORITIES gives. Raises as `set_config`."""
        listed = read_priorities(text, self._services.devices.available())
        field = config_field(PRIORITIES.name)
        order = {str(device.device): device.count for device in listed}
        with self._lock:
            loaded, failures = {*self._members}, self._choice.failures
            known = {name for name in self._candidates if self._choice.knows(name)}
        for name in order:
            if name not in known:
                raise NotFound.unknown("device of this network", name, known, field=field)
        if not loaded & order.keys():
            reasons = "; ".join(str(failures[name]) for name in order if name in failures)
            raise FailedPrecondition(
                f"none of the devices has loaded the network; {reasons}", field=field
            )
        return order

    def _show(self) -> None:
        """Shows in the configuration the present order with default numbers, or the values that the
        serving device has chosen."""
        limits, front = self.pool.limits(), self._front().executable
        with self._lock:
            if PRIORITIES in self.config:
                order = {name: limits.get(name, self._counts[name]) for name in self._choice.order}
                shown = ",".join(_listed(name, count) for name, count in order.items())
                self.config = self.config.changed({PRIORITIES.name: shown})
            else:
                self.config = showing(self.config, front, _CHOSEN)

    def _states(self) -> list[str]:
        """The states of all devices, including devices that have not loaded the network."""
        with self._lock:
            failures, loading = self._choice.failures, self._choice.loading
            missing = self._choice.not_loaded
        return _lines(
            self.pool.availabilities()
            | {name: "loading" if name == loading else "not loaded" for name in missing}
            | {name: f"failed: {failure.reason}" for name, failure in failures.items()}
        )

    def _completed(self) -> list[str]:
        self.place.counters.sort()
        return _lines(self.pool.completed())

    def _rows(self) -> list[str]:
        """The metric CANDIDATES."""
        measuring, front = self._measuring, self._front().name
        known = {row.device: row for row in (measuring.rows() if measuring is not None else ())}
        rows = (
            known.get(name) or DeviceSpeed(name, why="it is not measured")
            for name in self._candidates
        )
        return to_texts([replace(row, chosen=row.device == front) for row in rows])

    def _failures(self) -> dict[str, Failure]:
        with self._lock:
            return self._choice.failures

    def _loaded(self) -> Sequence[DeviceNetwork]:
        """All members, including members that are not in the list."""
        with self._lock:
            return [*self._members.values()]

    def _front(self) -> DeviceNetwork:
        """The first serving device, or the preferred device if none serves."""
        return (*self.pool.serving, *self.pool.members)[0]

    def _serving(self) -> Sequence[DeviceNetwork]:
        """The devices that get requests now. Without spilling, only the first serving one does."""
        serving = self.pool.serving or self.pool.members
        return serving if self._way.spill else serving[:1]


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{device}={what}" for device, what in table.items()]


def _listed(device: str, count: int | None) -> str:
    """The device and its number as they are written in a device name."""
    name = f"[{device}]" if ":" in device else device
    return name if count is None else f"{name}({count})"
