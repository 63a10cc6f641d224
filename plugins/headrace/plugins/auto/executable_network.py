"""A network on its best device. Another device serves it until that is ready, or while it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from headrace.plugins.auto.choice import Choice, Instruction, Load, Serve
from headrace.plugins.auto.ranking import is_slow
from headrace.plugins.multi.device_list import Candidate, Failure
from headrace.plugins.multi.loading import Member, export
from headrace.plugins.multi.pooled_network import PooledNetwork
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import (
    ALLOW_AUTO_BATCHING,
    INFERENCE_NUM_THREADS,
    NUM_STREAMS,
)
from headrace.runtime.device.executable_network import Place
from headrace.runtime.device.services import Services
from headrace.runtime.network.network import Network
from headrace.runtime.virtual.networks import execution_devices, showing

_log = logging.getLogger(__name__)

_CHOSEN = (NUM_STREAMS, INFERENCE_NUM_THREADS, ALLOW_AUTO_BATCHING)


class AutoNetwork(PooledNetwork):
    """Thread-safe: `_lock` guards the choice, too. The thread that reports an event follows the
    choice's instructions, without the lock.

    Args:
        See `PooledNetwork`. candidates: the best one first.
        member: the device that the network starts on.
        fallback: see `Choice`.
        slow: the candidates that serve only if no other one does.
    """

    def __init__(
        self,
        original: Network,
        candidates: Sequence[Candidate],
        member: Member,
        failures: Sequence[Failure],
        config: Configuration,
        services: Services,
        *,
        spill: bool,
        fallback: bool,
        slow: Collection[str] = (),
    ) -> None:
        super().__init__(original, candidates, [member], failures, config, services, spill=spill)
        names = [each.name for each in candidates]
        failed = [each.device for each in failures]
        self._names = names
        self._slow = slow
        self._choice = Choice(names, member.name, failed, fallback=fallback)
        self._ends = False

    def open(self, place: Place) -> None:
        super().open(place)
        self._members_changed()

    # -- the choice --

    def is_loaded(self, device: str) -> None:
        self._ask(self._choice.loaded)

    def has_failed(self, failure: Failure) -> None:
        super().has_failed(failure)
        self._ask(self._choice.failed)

    def try_again(self, device: str) -> None:
        """Loads the network on the device if the choice prefers that device."""

        def forgive(serving: Sequence[str]) -> list[Instruction]:
            self._choice.forgive(device)
            return self._choice.look(serving)

        self._ask(forgive)

    def _members_changed(self) -> None:
        if self._pool is None:  # a device is down already; `open` looks when the pool exists
            return
        self._ask(self._choice.look)
        self._show()

    def _ask(self, event: Callable[[Sequence[str]], list[Instruction]]) -> None:
        serving = [each.name for each in self.pool.serving]
        with self._lock:
            todo = [] if self._ends else event(serving)
        for each in todo:
            self._follow(each)

    def _follow(self, instruction: Instruction) -> None:
        if isinstance(instruction, Load):
            if instruction.device in self._slow:
                _log.warning("%s: %s", self.label, is_slow(instruction.device))
            self._late.start(instruction.device)
            return
        if isinstance(instruction, Serve):
            with self._lock:
                order = [self._members[name] for name in instruction.devices]
            self.pool.arrange([(each, each.count) for each in order])
            self._show()
            _log.info("%s is on %s now", self.label, ", ".join(instruction.devices))
            return
        with self._lock:
            member = self._members.pop(instruction.device)
        self.pool.when_empty(member, member.executable.close)

    def _show(self) -> None:
        """Shows in the configuration the values that the serving device has chosen."""
        front = self._front().executable
        with self._lock:
            self.config = showing(self.config, front, _CHOSEN)

    # -- hooks --

    def _export(self) -> bytes:
        """What the serving device exports, or the preferred device if none serves."""
        return export([self._front()])

    def _close(self) -> None:
        with self._lock:
            self._ends = True
        super()._close()

    def _not_loaded(self) -> Mapping[str, str]:
        standings = self.pool.standings()
        with self._lock:
            loading = self._choice.loading
        return {
            name: "loading" if name == loading else "not loaded"
            for name in self._names
            if name not in standings or name == loading
        }

    def _execution_devices(self) -> list[str]:
        """The devices that get requests now. Without spilling, only the first serving one does."""
        return execution_devices(each.executable for each in self._chosen())

    def _optimal_number_of_infer_requests(self) -> int:
        limits = self.pool.limits()
        return max(1, sum(limits.get(each.name, 1) for each in self._chosen()))

    # -- inside --

    def _front(self) -> Member:
        """The first serving device, or the preferred device if none serves."""
        return (*self.pool.serving, *self.pool.members)[0]

    def _chosen(self) -> Sequence[Member]:
        serving = self.pool.serving or self.pool.members
        return serving if self._spill else serving[:1]
