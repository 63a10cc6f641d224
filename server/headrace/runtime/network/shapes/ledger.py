"""Judges shapes once: which shapes of its inputs a network takes."""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeAlias

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.shapes.formulas import (
    Misfit,
    Program,
    Size,
    Term,
    number_of,
    size_from_json,
    size_to_json,
    terms_from_json,
)

_REMEMBERED: Final = 1024
"""The most tuples of shapes of a network whose verdict is remembered. A tuple takes some hundred
bytes; judging one again takes less than a millisecond."""
_INPUTS: Final = 16

Holds: TypeAlias = Callable[[int, int], bool]
_Key: TypeAlias = tuple[tuple[int, ...], ...]


def most_remembered(most: int, inputs: int) -> int:
    """How many tuples of shapes are remembered at most. Of a network with many inputs they are
    fewer, because a tuple has a shape for each."""
    return max(1, most * _INPUTS // max(inputs, _INPUTS))


class Requirement(NamedTuple):
    """What sizes must hold, or the layer is not run.

    Attributes:
        layer: the name of the layer.
        reason: what is wrong if they do not.
        holds: of the two sizes, for example `operator.eq`.
    """

    layer: str
    reason: str
    holds: Holds
    one: Size
    other: Size


AT_LEAST: Final = operator.ge
AT_MOST: Final = operator.le
EQUAL: Final = operator.eq
RELATIONS: Final[Mapping[str, Holds]] = MappingProxyType(
    {"at least": AT_LEAST, "at most": AT_MOST, "equal": EQUAL}
)
"""What requirements may ask of two sizes, by the name that it has in data."""
_NAMES: Final = {relation: name for name, relation in RELATIONS.items()}


class Ledger:
    """The verdicts of one network. Thread-safe: `_lock` guards those that are remembered, of which
    the one that was used least recently goes first.

    A new tuple of shapes costs some microseconds, because only the sizes that requirements speak of
    are computed, as formulas that were made at the load. So nobody can keep a server busy with ever
    new shapes.

    Args:
        requirements: of which every one must hold.
    """

    def __init__(self, requirements: tuple[Requirement, ...]) -> None:
        self._requirements = requirements
        self._program = Program(size for requirement in requirements for size in requirement[3:])
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[_Key, str | None] = OrderedDict()

    def to_json(self) -> dict[str, Any]:
        """The ledger as data, without the verdicts.

        Raises:
            ValueError: it has a function or a relation that has no name.
        """
        places = self._program.places
        return {
            "terms": self._program.to_json(),
            "requirements": [
                _requirement_to_json(requirement, places) for requirement in self._requirements
            ],
        }

    @classmethod
    def from_json(cls, told: Any) -> Self:
        """The ledger that `to_json` wrote. It never judges by something that it does not know.

        Raises:
            ValueError: there is anything that `to_json` does not write.
        """
        match told:
            case {"terms": terms, "requirements": [*requirements]}:
                known = terms_from_json(terms)
                return cls(tuple(_requirement_from_json(each, known) for each in requirements))
        raise ValueError("no ledger")

    def check(self, inputs: Mapping[str, Any]) -> None:
        """
        Args:
            inputs: by name. Those that count are arrays.

        Raises:
            InvalidArgument: a layer does not take the shapes that it would get.
        """
        key = tuple([inputs[name].shape for name in self._program.inputs])
        with self._lock:
            try:
                verdict = self._verdicts[key]
                self._verdicts.move_to_end(key)
            except KeyError:
                verdict = self._verdicts[key] = self.judge(key)
                if len(self._verdicts) > most_remembered(_REMEMBERED, len(key)):
                    self._verdicts.popitem(last=False)
        if verdict is not None:
            raise InvalidArgument(
                f"the network does not take these inputs: {verdict}", field="inputs"
            )

    def judge(self, shapes: _Key) -> str | None:
        """Why the network does not take inputs of these shapes; None if it does."""
        named = dict(zip(self._program.inputs, shapes, strict=True))
        try:
            numbers = self._program(named)
        except Misfit as misfit:
            return str(misfit)
        for requirement in self._requirements:
            if not requirement.holds(
                number_of(requirement.one, numbers), number_of(requirement.other, numbers)
            ):
                return f"layer {requirement.layer!r}: {requirement.reason}"
        return None


def _requirement_to_json(requirement: Requirement, places: Mapping[Term, int]) -> list[Any]:
    layer, reason, holds, one, other = requirement
    if holds not in _NAMES:
        raise ValueError(f"{holds} has no name")
    return [layer, reason, _NAMES[holds], size_to_json(one, places), size_to_json(other, places)]


def _requirement_from_json(told: Any, terms: list[Term]) -> Requirement:
    match told:
        case [str() as layer, str() as reason, str() as relation, one, other]:
            if relation not in RELATIONS:
                raise ValueError(f"no relation {relation!r}")
            sizes = size_from_json(one, terms), size_from_json(other, terms)
            return Requirement(layer, reason, RELATIONS[relation], *sizes)
    raise ValueError("no requirement")
