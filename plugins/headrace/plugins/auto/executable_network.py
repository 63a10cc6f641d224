"""A network on the best device for it, and on another one until that is ready or while it fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headrace.plugins.auto.background import Background
from headrace.plugins.auto.choice import Choice, Instruction, Load, Serve
from headrace.plugins.multi.container import Frame, write
from headrace.plugins.multi.lists import Candidate, Failure
from headrace.plugins.multi.loading import load_member, ports_of
from headrace.plugins.multi.member import Member
from headrace.plugins.multi.pooled_network import PooledNetwork
from headrace.runtime.cancel import CancelToken
from headrace.runtime.config import Configuration, ParameterValue
from headrace.runtime.device_name import DeviceName
from headrace.runtime.device_state import DeviceEvent, DeviceState
from headrace.runtime.errors import Cancelled, HeadraceError, Internal, Unavailable
from headrace.runtime.executable_network import Place
from headrace.runtime.network import Network
from headrace.runtime.services import Services

_log = logging.getLogger(__name__)


class AutoNetwork(PooledNetwork):
    """Thread-safe: `_lock` guards the choice, the members, the failures, and what was set. The
    choice's instructions are followed without it, one thread at a time for each event.

    Args:
        given: the network as it came, for the loads to come.
        candidates: devices to have it on, the best one first.
        member: the one that it starts on.
        failures: of devices that were passed over.
        spill: whether a device takes what a better one has no room for.
        fallback: as of `Choice`.
    """

    def __init__(
        self,
        given: Network,
        candidates: Sequence[Candidate],
        member: Member,
        failures: Sequence[Failure],
        config: Configuration,
        services: Services,
        *,
        spill: bool,
        fallback: bool,
    ) -> None:
        super().__init__([member], config, services.states, spill=spill)
        self._network_given: Network | None = given
        self._candidates = {each.name: each for each in candidates}
        self._lock = threading.Lock()
        self._members = {member.name: member}
        self._failures = {each.device: each for each in failures}
        self._changes: dict[str, str] = {}
        self._choice = Choice(
            [*self._candidates], member.name, [*self._failures], fallback=fallback
        )
        self._background = Background(services.executors)
        self._token = CancelToken()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._hears = False

    def open(self, place: Place) -> None:
        super().open(place)
        self._members_changed()
        self._unsubscribe = self._states.subscribe(self._hear)
        self._hears = True  # what it heard before was how things are, and no change

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Changes the keys of the loads to come, too."""
        self.config.changed(changes)  # raises before anything is written down
        with self._lock:
            self._changes.update(changes)
        super().set_config(changes)

    # -- the choice --

    def _hear(self, event: DeviceEvent) -> None:
        """A device that was down when it was to load the network gets another chance."""
        if not self._hears or event.state is not DeviceState.UP:
            return

        def forgive(serving: Sequence[str]) -> list[Instruction]:
            for name, failure in [*self._failures.items()]:
                is_it = event.device in {name, DeviceName.parse(name).type}
                if is_it and name in self._candidates and isinstance(failure.error, Unavailable):
                    del self._failures[name]
                    self._choice.forgive(name)
            return self._choice.look(serving)

        self._ask(forgive)

    def _members_changed(self) -> None:
        if self._pool is None:  # a device is down already: `open` looks once the pool is there
            return
        self._ask(self._choice.look)

    def _ask(self, event: Callable[[Sequence[str]], list[Instruction]]) -> None:
        serving = [each.name for each in self.pool.serving]
        with self._lock:
            todo = event(serving) if self._token.error is None else []
        for each in todo:
            self._follow(each)

    def _follow(self, instruction: Instruction) -> None:
        if isinstance(instruction, Load):
            try:
                self._background.start(partial(self._load, instruction.device))
            except Unavailable as error:
                _log.info("%s is not loaded: %s", instruction.device, error)
            return
        if isinstance(instruction, Serve):
            with self._lock:
                order = [self._members[name] for name in instruction.devices]
            self.pool.arrange([(each, each.limit) for each in order])
            _log.info("network %r is on %s now", self.name, ", ".join(instruction.devices))
            return
        with self._lock:
            member = self._members.pop(instruction.device)
        self.pool.when_empty(member, member.executable.close)

    def _load(self, device: str) -> None:
        """On a thread that may take its time."""
        given = self._network_given
        try:
            if self._token.error is not None or given is None:
                return
            ports = ports_of(self._given[0].executable)
            member, notes = load_member(given, self._candidates[device], self._token, None, ports)
        except Exception as error:  # noqa: BLE001 - whatever a device does, the network serves on
            if self._token.error is None:
                self._has_failed(device, error)
            return
        with self._lock:
            closing = self._token.error is not None
            if not closing:
                self._members[device] = member
            changes = dict(self._changes)
        if closing:
            member.executable.close()
            return
        known = member.executable.config.schema
        own = {key: text for key, text in changes.items() if key in known}
        if own:
            member.executable.set_config(own)
        self.notes = (*self.notes, *notes)
        self.loaded_from_cache |= member.executable.loaded_from_cache
        self._ask(self._choice.loaded)

    def _has_failed(self, device: str, error: Exception) -> None:
        known = error if isinstance(error, HeadraceError) else Internal(f"{error!r}")
        failure = Failure(device, known)
        bug = error if isinstance(known, Internal) else None
        _log.warning("network %r: %s", self.name, failure, exc_info=bug)
        self.notes = (*self.notes, str(failure))

        def failed(serving: Sequence[str]) -> list[Instruction]:
            self._failures[device] = failure
            return self._choice.failed(serving)

        self._ask(failed)

    # -- hooks --

    def _export(self) -> bytes:
        """Of the device that serves, or that would."""
        chosen = (*self.pool.serving, *self.pool.members)[0]
        native = chosen.executable.export()
        return write([Frame(chosen.name, chosen.architecture, chosen.backend_version, native)])

    def _close(self) -> None:
        self._unsubscribe()
        self._token.cancel(Cancelled("the network was unloaded"))
        self._background.stop()
        super()._close()
        self._network_given = None

    def _loaded(self) -> Sequence[Member]:
        with self._lock:
            return [*self._members.values()]

    def _metrics(self) -> Mapping[str, Callable[[], ParameterValue]]:
        return {**super()._metrics(), "DEVICE_STATES": self._states_of_all}

    def _states_of_all(self) -> list[str]:
        """Of every candidate, those that are not loaded included."""
        standings = self.pool.standings()
        with self._lock:
            for name in self._candidates:
                if name == self._choice.loading:
                    standings[name] = "loading"
                standings.setdefault(name, "not loaded")
            failures = {name: f"failed: {each.reason}" for name, each in self._failures.items()}
        return [f"{device}={what}" for device, what in {**standings, **failures}.items()]

    def _execution_devices(self) -> list[str]:
        """Those that get requests now: without spilling, of the first device that serves."""
        serving = self.pool.serving or self.pool.members
        chosen = serving if self._spill else serving[:1]
        return list(dict.fromkeys(name for each in chosen for name in each.execution_devices()))

    def _optimal_number_of_infer_requests(self) -> int:
        serving = self.pool.serving or self.pool.members
        return max(1, sum(each.limit for each in (serving if self._spill else serving[:1])))
