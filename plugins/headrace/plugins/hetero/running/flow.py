"""Says which subgraph waits for which. The state machine of a request follows it. Pure."""

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
class SubgraphFlow:
    """The subgraphs that must run to compute some outputs of a network. Other subgraphs do not run.

    Attributes:
        count: how many subgraphs run.
        first: the subgraphs that wait for no other.
        waits: for each subgraph, how many others it waits for.
        followers: for each subgraph, the subgraphs that wait for it.
        outputs: for each subgraph, the tensors that it computes.
        handed: for each subgraph, the tensors that it takes from others.
        reads: for each tensor between subgraphs, how many subgraphs read it. The number is one
            higher for a requested output, so that the tensor is kept to the end.
    """

    count: int
    first: tuple[int, ...]
    waits: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[str, ...], ...]
    handed: tuple[tuple[str, ...], ...]
    reads: dict[str, int]


def flow(subgraphs: Sequence[Ends], results: Iterable[str]) -> SubgraphFlow:
    """The flow of tensors to the outputs `results`.

    Args:
        subgraphs: each comes after the subgraphs whose outputs it takes.
    """
    source = {name: at for at, subgraph in enumerate(subgraphs) for name in subgraph.outputs}
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
    return SubgraphFlow(
        count=len(needed),
        first=tuple(at for at in sorted(needed) if not waits[at]),
        waits=tuple(waits),
        followers=tuple(map(tuple, followers)),
        outputs=tuple(
            tuple(name for name in subgraph.outputs if name in reads) for subgraph in subgraphs
        ),
        handed=tuple(handed),
        reads=dict(reads),
    )
