"""What a list of devices would run, where each that serves runs all of a network."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.plugins.multi.lists import Candidate
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.network import Network
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.virtual.members import ask


def query(
    network: Network, candidates: Sequence[Candidate], *, strict: bool, lenient: bool
) -> QueryResult:
    """The answer of the first device that runs the whole network; if none does, of the one that
    runs the most layers.

    Args:
        strict: every device has to run it, so the answer is that of the first that does not.
        lenient: pass over a device that does not take a value of the configuration.

    Raises:
        InvalidArgument: of all the devices, none takes a value.
    """
    best: QueryResult | None = None
    refused: InvalidArgument | None = None
    for candidate in candidates:
        try:
            result = ask(candidate.target, network)
        except InvalidArgument as error:
            if not lenient or not (error.field or "").startswith("config"):
                raise
            refused = error
            continue
        if bool(result.unsupported) is strict:
            return result
        if best is None or len(result.supported_layers) > len(best.supported_layers):
            best = result
    if best is None:
        assert refused is not None, "a list has a device"
        raise refused
    return best
