"""Measures, while nothing else runs, how fast a network is on each device that AUTO may choose.

All networks of AUTO share one thread (`Background`). On it a network runs on its devices in turns,
one request alone and with all streams full. A device that does not have the network loads it for
the measurement, within the memory budget, and keeps it only if it is chosen.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from headrace.plugins.multi.contest import Agenda, DeviceSpeed, averaged, chosen, decided
from headrace.plugins.multi.device_list import Failure
from headrace.plugins.multi.kept import KeptMeasurements
from headrace.plugins.multi.loading import DeviceNetwork
from headrace.plugins.multi.members import PoolMembers
from headrace.plugins.multi.speed_meter import NotIdle, SettledRun, SpeedMeter
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.services import Keep
from headrace.runtime.errors import (
    Cancelled,
    FailedPrecondition,
    HeadraceError,
    ResourceExhausted,
    Unavailable,
    public_text,
)
from headrace.runtime.execution.alarm import Alarm
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.request_shapes import RequestShapes, Shapes
from headrace.runtime.loading.warm_up import inputs_of
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Value
from headrace.runtime.system.graph_memory import free_graphs
from headrace.runtime.transform.warm_up import WarmUp

_log = logging.getLogger(__name__)

_CHOSE: Final = "measured: "
"""The beginning of the note about a measurement."""
_LOAD_SECONDS: Final = 120.0
"""How long a device may load the network for a measurement."""
_MOST_BYTES: Final = 2**28
"""The most bytes of made inputs."""


class Measuring:
    """The measurements of one network.

    Thread-safe: `_lock` guards the agenda, the alarm and what was measured. The timer's lock is
    taken under it. Measurements run on the thread of `Policy.background`, without the lock.

    Args:
        members: the network on the devices; their policy says which are measured, and how.
        inputs: the network's.
        shapes: of its requests, which its owner counts.
        folder: of the cache; empty for none.
        note: called with the beginning of a note and the note, about each decision.
    """

    def __init__(
        self,
        members: PoolMembers,
        inputs: Sequence[Port],
        shapes: RequestShapes,
        folder: str,
        note: Callable[[str, str], object],
    ) -> None:
        assert members.policy.background is not None
        self._members, self._policy = members, members.policy
        self._inputs = inputs
        self._shapes = shapes
        self._background = members.policy.background
        self._candidates = {name: members.candidates[name] for name in members.policy.measured}
        services, candidates = members.services, [*self._candidates.values()]
        self._kept = KeptMeasurements(services, folder, candidates, members.original)
        self._note = note
        self._lock = threading.Lock()
        self._token = CancelToken()
        self._ends = threading.Event()
        self._meter = SpeedMeter(services, self._token, self._ends)
        self._agenda = Agenda(shapes, time.monotonic())
        self._alarm = Alarm(services.timer, self._on_alarm)
        self._rows: tuple[DeviceSpeed, ...] = ()
        self._arrivals = 0  # of devices, that it knows of
        self._loans: dict[str, Keep] = {}  # of a measurement that is under way
        self._left_out = False  # whether it has left a device out for a reason that may pass
        self._agrees = True  # whether its turns have the same device win
        self.name = ""

    # -- life --

    def begin(self, name: str) -> None:
        """Measures from now on. The network has this name."""
        with self._lock:
            self.name = name
            self._agenda.due = time.monotonic() + self._agenda.pause
            self._alarm.set(self._agenda.due)

    def close(self) -> None:
        """Ends a measurement that is under way, and waits for its end."""
        self._token.cancel(Cancelled("the network was unloaded"))
        self._ends.set()
        with self._lock:
            self._alarm.close()
        self._background.forget(self)

    def rows(self) -> tuple[DeviceSpeed, ...]:
        """What is known of each device."""
        return self._rows or tuple(
            DeviceSpeed(each, why="not measured yet") for each in self._candidates
        )

    # -- threads --

    def _on_alarm(self) -> None:
        with self._lock:
            self._alarm.rang()
        self._background.start(self, self._look)

    def _look(self) -> None:
        """Measures if it is time to. Runs on the thread for measurements."""
        with self._lock:
            if self._arrivals != self._members.arrivals:
                self._arrivals = self._members.arrivals
                self._agenda.forget()
            shapes = self._agenda.wanted()
            if shapes is None:
                self._agenda.looked(time.monotonic())
        try:
            if shapes is not None:
                with self._members.kept():
                    self._measure(shapes)
        except NotIdle:
            with self._lock:
                self._agenda.disturbed(time.monotonic())
        except Exception as error:  # noqa: BLE001 - whatever happens, the network serves on
            if not self._token.cancelled:
                _log.exception("network %r could not be measured", self.name, exc_info=error)
            with self._lock:
                self._agenda.disturbed(time.monotonic())
        with self._lock:
            self._alarm.set(self._agenda.due)

    # -- a measurement --

    def _measure(self, shapes: Shapes) -> None:
        self._left_out, self._agrees = False, True
        present = self._members.present()
        if not present or self._members.arrivals != self._arrivals:
            raise NotIdle
        with ExitStack() as loans, ExitStack() as apart:
            members: dict[str, DeviceNetwork] = {}
            apart.callback(_close_all, members)
            known = self._agenda.known(shapes) or self._kept.read(shapes)
            found = known or self._run_all(shapes, present, members, loans)
            if self._members.arrivals != self._arrivals:
                raise NotIdle  # a device has come back meanwhile, and may serve
            with self._lock:
                rows = averaged(self._agenda.traffic(shapes, found))
            rows = decided(rows, present, throughput=self._policy.throughput)
            best = chosen(rows, present)
            if best != present and not self._serve(best, members, loans):
                raise NotIdle
            self._rows = rows
        if not known and self._agrees:
            self._kept.write(shapes, found)
        with self._lock:
            self._agenda.measured(shapes, found, time.monotonic(), whole=not self._left_out)
        note = f"{best} serves: {'; '.join(map(str, rows))}"
        self._note(_CHOSE, _CHOSE + note)
        _log.info("network %r: %s", self.name, note)

    def _serve(self, device: str, members: dict[str, DeviceNetwork], loans: ExitStack) -> bool:
        """Has the device serve. Returns whether it does."""
        if self._members.loaded(device) is None and device not in members:
            try:
                self._load(device, members, loans)
            except HeadraceError as error:
                _log.warning("network %r: %s", self.name, Failure(device, error))
                return False
        member = members.pop(device, None)
        if self._members.prefer(device, member):
            if member is not None:
                self._members.copies.append(self._loans[device]())
            return True
        if member is not None:
            members[device] = member  # it is closed with the others
        return False

    def _run_all(
        self,
        shapes: Shapes,
        present: str,
        members: dict[str, DeviceNetwork],
        loans: ExitStack,
    ) -> tuple[DeviceSpeed, ...]:
        """Runs the network on every device."""
        refused: dict[str, DeviceSpeed] = {}
        runs: dict[str, SettledRun] = {}
        inputs: Mapping[str, Value] = {}
        order = [present, *(each for each in self._candidates if each != present)]
        for device in order:
            try:
                executable = self._members.loaded(device)
                if executable is None:
                    executable = self._load(device, members, loans)
                inputs = inputs or self._made(executable, shapes)
                runs[device] = self._meter.settle(executable, inputs)
            except NotIdle:
                raise
            except Exception as error:
                if self._token.error is not None:
                    raise
                if not isinstance(error, HeadraceError):
                    _log.warning("network %r on %s", self.name, device, exc_info=error)
                refused[device] = DeviceSpeed(
                    device, why=f"it was not measured: {public_text(error)}"
                )
                self._left_out |= isinstance(error, ResourceExhausted | Unavailable)
                if device == present:
                    break  # there is nothing to compare others with
        found: dict[str, DeviceSpeed] = {}
        unknown = "nothing to compare with it was measured"
        try:
            if present in runs and len(runs) > 1:
                found = self._measured(runs, inputs)
                rows = decided([*found.values()], present, throughput=self._policy.throughput)
                best = chosen(rows, present)
                if best != present:  # it has to win twice: the machine may do other work, too
                    both = {name: runs[name] for name in (present, best)}
                    found |= self._measured(both, inputs)
                    rows = decided([*found.values()], present, throughput=self._policy.throughput)
                    self._agrees = chosen(rows, present) == best
        except NotIdle:
            raise
        except Exception as error:
            if self._token.error is not None:
                raise
            _log.warning("network %r was not measured", self.name, exc_info=error)
            unknown = f"the measurement failed: {public_text(error)}"
        return tuple(
            found.get(device) or refused.get(device) or DeviceSpeed(device, why=unknown)
            for device in order
        )

    def _measured(
        self, runs: Mapping[str, SettledRun], inputs: Mapping[str, Value]
    ) -> dict[str, DeviceSpeed]:
        figures = self._meter.measure([*runs.values()], inputs)
        return {name: DeviceSpeed(name, *each) for name, each in zip(runs, figures, strict=True)}

    def _load(
        self, device: str, members: dict[str, DeviceNetwork], loans: ExitStack
    ) -> ExecutableNetwork:
        on = self._candidates[device].target.device
        lent = self._members.services.lent(self._policy.full_name, on, self._members.original())
        self._loans[device] = loans.enter_context(lent)
        with self._meter.within(_LOAD_SECONDS) as token:
            member = members[device] = self._members.load_apart(device, token)
        return member.executable

    def _made(self, executable: ExecutableNetwork, shapes: Shapes) -> Mapping[str, Value]:
        """The inputs of a run: those of the warm-up if it has these shapes, or random numbers."""
        if self._policy.warm_up is not None:
            with suppress(HeadraceError):  # its file may be gone
                given = inputs_of(executable, self._policy.warm_up)
                if self._shapes.of(given) == shapes:
                    return given
        by_name = self._shapes.by_name(shapes)
        size = sum(
            math.prod(by_name[port.name]) * port.dtype.numpy().itemsize
            for port in self._inputs
            if port.name in by_name
        )
        if size > _MOST_BYTES:
            raise FailedPrecondition(f"its inputs have more than {_MOST_BYTES} bytes")
        return inputs_of(executable, WarmUp(shapes=by_name, random=frozenset(by_name)))


def _close_all(members: Mapping[str, DeviceNetwork]) -> None:
    for member in members.values():
        member.executable.close()
    if members:
        free_graphs(wait=False)
