"""Judges shapes once: which shapes of its inputs a network takes."""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.shapes.formulas import Misfit, Program, Size, number_of

_REMEMBERED: Final = 1024
"""The most tuples of shapes of a network whose verdict is remembered. A tuple takes some hundred
bytes; judging one again takes less than a millisecond."""

Holds: TypeAlias = Callable[[int, int], bool]
_Key: TypeAlias = tuple[tuple[int, ...], ...]


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
                if len(self._verdicts) > _REMEMBERED:
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
