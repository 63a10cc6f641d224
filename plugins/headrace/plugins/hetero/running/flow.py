"""Which subgraph runs when: what the state machine of a request goes by. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ends:
    """Names of the tensors that a subgraph takes and gives."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """What some outputs of a network take: subgraphs that nothing of it needs do not run.

    Attributes:
        count: how many subgraphs run.
        first: those that wait for no other.
        waits: of each subgraph, how many others it waits for.
        followers: of each one, those that wait for it.
        outputs: of each one, what it computes.
        handed: of each one, what it takes from others.
        reads: of each tensor between subgraphs, how many read it; one more if it is a requested
            output, so that it is kept to the end.
    """

    count: int
    first: tuple[int, ...]
    waits: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[str, ...], ...]
    handed: tuple[tuple[str, ...], ...]
    reads: dict[str, int]


def flow(subgraphs: Sequence[Ends], results: Iterable[str]) -> Flow:
    """The flow of tensors to the outputs `results`.

    Args:
        subgraphs: each after all whose outputs it takes.
    """
    source = {name: at for at, each in enumerate(subgraphs) for name in each.outputs}
    reads = Counter(name for name in results if name in source)
    needed = {source[name] for name in reads}
    handed: list[tuple[str, ...]] = [()] * len(subgraphs)
    for at in reversed(range(len(subgraphs))):
        if at in needed:
            handed[at] = tuple(name for name in subgraphs[at].inputs if name in source)
            reads.update(handed[at])
            needed.update(source[name] for name in handed[at])
    waits = [len({source[name] for name in names}) for names in handed]
    followers: list[dict[int, None]] = [{} for _ in subgraphs]
    for at, names in enumerate(handed):
        for name in names:
            followers[source[name]][at] = None
    return Flow(
        count=len(needed),
        first=tuple(at for at in sorted(needed) if not waits[at]),
        waits=tuple(waits),
        followers=tuple(map(tuple, followers)),
        outputs=tuple(tuple(name for name in each.outputs if name in reads) for each in subgraphs),
        handed=tuple(handed),
        reads=dict(reads),
    )
