"""Says which part of a request waits for which. The state machine of a request follows it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ends:
    """Names of the tensors that a part takes and gives."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartsFlow:
    """The parts that must run to compute some outputs of a network. Other parts do not run.

    Attributes:
        count: how many parts run.
        first: the parts that wait for no other.
        waits: for each part, how many others it waits for.
        followers: for each part, the parts that wait for it.
        outputs: for each part, the tensors that it computes.
        handed: for each part, the tensors that it takes from others.
        reads: for each tensor between parts, how many parts read it. The number is one higher for a
            requested output, so that the tensor is kept to the end.
    """

    count: int
    first: tuple[int, ...]
    waits: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[str, ...], ...]
    handed: tuple[tuple[str, ...], ...]
    reads: dict[str, int]


def flow(parts: Sequence[Ends], results: Iterable[str]) -> PartsFlow:
    """The flow of tensors to the outputs `results`.

    Args:
        parts: each comes after the parts whose outputs it takes.
    """
    source = {name: at for at, part in enumerate(parts) for name in part.outputs}
    reads = Counter(name for name in results if name in source)
    needed = {source[name] for name in reads}
    handed: list[tuple[str, ...]] = [()] * len(parts)
    for at in reversed(range(len(parts))):
        if at in needed:
            handed[at] = tuple(name for name in parts[at].inputs if name in source)
            reads.update(handed[at])
            needed.update(source[name] for name in handed[at])
    waits = [len({source[name] for name in names}) for names in handed]
    followers: list[dict[int, None]] = [{} for _ in parts]
    for at, names in enumerate(handed):
        for name in names:
            followers[source[name]][at] = None
    return PartsFlow(
        count=len(needed),
        first=tuple(at for at in sorted(needed) if not waits[at]),
        waits=tuple(waits),
        followers=tuple(map(tuple, followers)),
        outputs=tuple(tuple(name for name in part.outputs if name in reads) for part in parts),
        handed=tuple(handed),
        reads=dict(reads),
    )
