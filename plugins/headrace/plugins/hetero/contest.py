"""Measures splits of a network whole, and keeps the fastest.

The time of a split is that of a request alone. What layers take is measured on the way: each split
says what its layers take on the device where it has them.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Final

import numpy as np

from headrace.plugins.hetero.executable_network import HeteroNetwork
from headrace.plugins.hetero.planning.layers import edges_between
from headrace.plugins.hetero.planning.placement import MOST_LAYERS, LayerCosts, placed
from headrace.plugins.hetero.planning.plan import Plan, names_of
from headrace.runtime.device.executable_network import ExecutableNetwork, Place
from headrace.runtime.device.load import LoadResult
from headrace.runtime.errors import HeadraceError, public_text
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, nobody_waits
from headrace.runtime.loading.warm_up import inputs_of
from headrace.runtime.network.values import Value
from headrace.runtime.transform.warm_up import WarmUp
from headrace.runtime.virtual import timing

_log = logging.getLogger(__name__)

HOP_SECONDS: Final = 1e-4
"""What it takes to go on with a request on another device, without the copy."""
WORTH: Final = 1.01
"""How much faster a split must be to be kept instead of a simpler one."""
_FEWEST, _MOST = 7, 200
_SPENT_SECONDS: Final = 3.0
_MOST_SECONDS: Final = 120.0
"""The time for all runs and loads of a measurement. Slower networks keep the greedy split."""
_PROFILES: Final = 3
_COPIES: Final = 5
_COPIED_BYTES: Final = 2**22


@dataclass(slots=True)
class MeasuredSplit:
    """A way to split the network, loaded.

    Attributes:
        seconds: of a request; None if it was not measured.
    """

    plan: Plan
    loaded: LoadResult
    name: str = "PRIORITY"
    seconds: float | None = None

    @property
    def network(self) -> ExecutableNetwork:
        return self.loaded.network


@dataclass(slots=True)
class SplitContest:
    """The splits of one load. Within it as a context, they are open; afterwards only the chosen one
    is.

    Args:
        greedy: the split by priority. It is chosen unless another one is simpler or faster.
        make: splits and loads the network with each layer on the device that is named for it.
            Raises as a load.
        place: where splits run.
        token: the load's.
        lent: lends memory for one more copy of the network, or raises ResourceExhausted.
        warm_up: the requests to measure with; None for random values.
    """

    greedy: MeasuredSplit
    make: Callable[[Mapping[str, str]], MeasuredSplit]
    place: Place
    token: CancelToken
    lent: Callable[[], AbstractContextManager[object]] = nullcontext
    warm_up: WarmUp | None = None
    _splits: list[MeasuredSplit] = field(init=False)
    _chosen: MeasuredSplit = field(init=False)
    _failed: list[tuple[str, str]] = field(default_factory=list)
    _notes: tuple[str, ...] = ()
    _lasts: bool = True
    _fastest: dict[str, int] = field(default_factory=dict)
    _loans: ExitStack = field(default_factory=ExitStack)
    _in_time: CancelToken = field(init=False)

    def __post_init__(self) -> None:
        self._splits, self._chosen = [self.greedy], self.greedy

    def __enter__(self) -> SplitContest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._loans:
            for split in self._splits:
                if split is not self._chosen or error is not None:
                    split.network.close()

    def note(self, text: str) -> None:
        """Adds a note about the load."""
        self._notes = (*self._notes, text)

    def chosen(self) -> tuple[Plan, LoadResult]:
        """The fastest split, with the notes about all."""
        split = self._chosen
        assert isinstance(split.network, HeteroNetwork)
        split.network.lasts &= self._lasts and not self._failed
        split.network.notes_on_split += self._notes
        told = {"candidates": self._rows(), "fastest_layers": self._fastest}
        split.network.placement = json.dumps(told)
        return split.plan, replace(split.loaded, notes=(*split.loaded.notes, *self._notes))

    def run(self, refusals: Mapping[str, frozenset[str]]) -> None:
        """Makes the other splits and measures all.

        Args:
            refusals: the layers that each device does not run.

        Raises:
            What cancels the load.
        """
        try:
            whole = self.greedy.network
            random = WarmUp(random=frozenset(port.name for port in whole.inputs))
            inputs = inputs_of(whole, self.warm_up or random)
            with timing.within(_MOST_SECONDS, self.token, self.place.timer) as self._in_time:
                self._open(self.greedy, inputs)
                self._measure(refusals, inputs)
        except Exception as error:  # noqa: BLE001 - whatever a device does, the greedy split serves
            if self.token.error is not None:
                raise self.token.error from None
            if not isinstance(error, HeadraceError):
                _log.warning("the splits of a network were not measured", exc_info=error)
            self._lasts = False
            self.note(f"the splits were not measured: {public_text(error)}")

    # -- inside --

    def _measure(self, refusals: Mapping[str, frozenset[str]], inputs: Mapping[str, Value]) -> None:
        for device, refused in refusals.items():
            self._add(device, self._mostly(device, refused), inputs)
        costs = self._costs(refusals, inputs)
        if costs is not None:
            devices = placed(costs, self._devices(self.greedy))
            self._add("cheapest layers and copies", self._wanted(devices), inputs)
        splits = sorted(self._splits, key=lambda split: len(split.plan.parts))
        counts = [len(split.plan.parts) for split in splits]
        found = timing.in_turns(
            [partial(timing.quickest, split.network, inputs, self._in_time) for split in splits],
            fewest=_FEWEST,
            most=_MOST,
            left_seconds=_SPENT_SECONDS,
            enough=partial(is_clear, subgraphs=counts),
        )
        figures = []
        for split, took in zip(splits, found, strict=True):
            split.seconds = statistics.median(took)
            figures.append(f"{split.name} {split.seconds * 1e3:.3g} ms")
        self._chosen = splits[fastest(found, counts)]
        self.note(f"the split ({self._chosen.name}) is kept; measured: {'; '.join(figures)}")

    def _heed(self) -> None:
        if self._in_time.error is not None:
            raise self._in_time.error

    def _rows(self) -> list[dict[str, Any]]:
        measured = [
            {
                "split": split.name,
                "layers": dict(Counter(filter(None, split.plan.devices))),
                "subgraphs": len(split.plan.parts),
                "latency_seconds": split.seconds,
                "chosen": split is self._chosen,
                "why": "",
            }
            for split in self._splits
        ]
        failed: list[dict[str, Any]] = [
            {
                "split": name,
                "layers": {},
                "subgraphs": 0,
                "latency_seconds": None,
                "chosen": False,
                "why": why,
            }
            for name, why in self._failed
        ]
        return measured + failed

    def _devices(self, split: MeasuredSplit) -> list[str]:
        return list(split.plan.devices)

    def _mostly(self, device: str, refused: frozenset[str]) -> dict[str, str]:
        """The device for all layers that it runs, and for the others as before."""
        layers = self.greedy.plan.layers()
        return self._wanted(
            device if layer.name not in refused else before
            for layer, before in zip(layers, self.greedy.plan.devices, strict=True)
        )

    def _wanted(self, devices: Any) -> dict[str, str]:
        layers = self.greedy.plan.layers()
        return {
            layer.name: device
            for layer, device in zip(layers, devices, strict=True)
            if not layer.constant
        }

    def _add(self, name: str, wanted: Mapping[str, str], inputs: Mapping[str, Value]) -> None:
        """Makes one more split, unless there is one with each layer on the same device."""
        for split in self._splits:
            if self._wanted(split.plan.devices) == wanted:
                if name not in split.name:
                    split.name = f"{split.name}, {name}"
                return
        made: MeasuredSplit | None = None
        try:
            self._loans.enter_context(self.lent())
            made = self.make(wanted)
            made.name = name
            self._open(made, inputs)
        except Exception as error:  # noqa: BLE001 - as above
            if made is not None:
                made.network.close()
            self._heed()
            self._failed.append((name, public_text(error)))
            return
        self._splits.append(made)

    def _open(self, split: MeasuredSplit, inputs: Mapping[str, Value]) -> None:
        """Opens it, and runs it until its devices try nothing out any more."""
        split.network.open(self.place)
        timing.settle(split.network, inputs, self._in_time)

    # -- what layers cost --

    def _costs(
        self, refusals: Mapping[str, frozenset[str]], inputs: Mapping[str, Value]
    ) -> LayerCosts | None:
        """What layers and copies cost; None if the devices do not tell, or if there are too many
        layers."""
        nodes = list(self.greedy.plan.network.model.graph)
        if len(nodes) > MOST_LAYERS or len(refusals) < 2:
            return None
        places = {name: at for at, node in enumerate(nodes) for name in names_of(node)}
        seconds: list[dict[str, float]] = [{} for _ in nodes]
        for split in self._splits:
            for at, (device, took) in self._profile(split, places, inputs).items():
                seconds[at][device] = min(took, seconds[at].get(device, math.inf))
        layers = self.greedy.plan.layers()
        for layer, each in zip(layers, seconds, strict=True):
            if layer.constant:
                each.update(dict.fromkeys(refusals, 0.0))
        if any(not each for each in seconds):
            return None
        compared = [each for each in seconds if len(each) > 1 and any(each.values())]
        self._fastest = dict(Counter(min(each, key=each.__getitem__) for each in compared))
        return LayerCosts(seconds, self._tensors(nodes))

    def _profile(
        self, split: MeasuredSplit, places: Mapping[str, int], inputs: Mapping[str, Value]
    ) -> dict[int, tuple[str, float]]:
        """What each layer takes in a split, and where."""
        best = dict.fromkeys(range(len(split.plan.devices)), math.inf)
        for _ in range(_PROFILES):
            job = Job(inputs, nobody_waits, token=self._in_time, profile=True)
            try:
                split.network.compute(job)
            except Exception:  # noqa: BLE001 - as above
                self._heed()
                return {}
            spent = dict.fromkeys(best, 0.0)
            for layer in job.layers:
                known = [places[name] for name in layer.origins if name in places]
                if known:
                    spent[known[0]] += layer.seconds  # of layers that are fused, the first one
            best = {at: min(best[at], took) for at, took in spent.items()}
        if not any(best.values()):
            return {}
        devices = split.plan.devices
        return {at: (devices[at], took) for at, took in best.items() if devices[at]}

    def _tensors(self, nodes: list[Any]) -> list[tuple[int, list[int], float]]:
        """The tensors between layers, with what a copy takes."""
        per_byte = _seconds_per_byte()
        readers: dict[int, list[int]] = {}
        for maker, reader in edges_between(nodes):
            readers.setdefault(maker, []).append(reader)
        constant = [layer.constant for layer in self.greedy.plan.layers()]
        return [
            (maker, each, HOP_SECONDS + per_byte * sum(map(_bytes, nodes[maker].outputs)))
            for maker, each in readers.items()
            if not constant[maker]
        ]


def fastest(took: Sequence[Sequence[float]], subgraphs: Sequence[int]) -> int:
    """The split to keep: the first one, unless another one is faster. One with more subgraphs must
    be faster beyond the error.

    Args:
        took: what requests took on each in the same rounds.
        subgraphs: how many each has, in rising order.
    """
    best = 0
    for at in range(1, len(took)):
        found = timing.compare(took[at], took[best])
        is_sure = found.low > 1 or subgraphs[at] == subgraphs[best]
        if found.ratio >= WORTH and is_sure:
            best = at
    return best


def is_clear(took: Sequence[Sequence[float]], subgraphs: Sequence[int]) -> bool:
    """Whether more rounds will hardly change which split is the fastest."""
    best = took[fastest(took, subgraphs)]
    return all(timing.compare(each, best).high < WORTH for each in took if each is not best)


def _bytes(value: Any) -> float:
    """The size of a tensor; an axis of any size counts as one."""
    sizes = [size if isinstance(size, int) else 1 for size in value.shape or ()]
    width: int = value.dtype.numpy().itemsize if value.dtype is not None else 4
    return math.prod(sizes) * width


def _seconds_per_byte() -> float:
    source = np.zeros(_COPIED_BYTES, np.uint8)
    target = np.empty_like(source)

    def copy() -> float:
        start = time.perf_counter()
        np.copyto(target, source)
        return time.perf_counter() - start

    return min(copy() for _ in range(_COPIES)) / _COPIED_BYTES
