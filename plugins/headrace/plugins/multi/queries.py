"""What a list of devices would run, where each that serves runs all of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.plugins.multi.lists import Candidate
from headrace.runtime.network import Network
from headrace.runtime.query import QueryResult


def query(network: Network, candidates: Sequence[Candidate], *, strict: bool) -> QueryResult:
    """The answer of the first device that runs the whole network; if none does, of the one that
    runs the most layers.

    Args:
        strict: every device has to run it, so the answer is that of the first that does not.
    """
    best: QueryResult | None = None
    for result in _answers(network, candidates):
        if bool(result.unsupported) is strict:
            return result
        if best is None or len(result.supported_layers) > len(best.supported_layers):
            best = result
    assert best is not None, "a list has a device"
    return best


def _answers(network: Network, candidates: Sequence[Candidate]) -> Iterator[QueryResult]:
    for candidate in candidates:
        target = candidate.target
        yield target.plugin.query_network(network, target.config, target.options)
