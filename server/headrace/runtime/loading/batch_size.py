"""Checks that a network takes batches, if its load says so."""

from __future__ import annotations

from contextlib import suppress

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.network import Network, Port
from headrace.runtime.sequences.keys import STATES, declarations
from headrace.runtime.transform.options import LoadRequest

_FIELD = "max_batch_size"


def check_batch_size(network: Network, request: LoadRequest) -> None:
    """
    Raises:
        InvalidArgument: `max_batch_size` is set, but an input or output that clients see has no
            first dimension of any size.
    """
    if not request.presentation.max_batch_size:
        return
    kept: set[str] = set()
    with suppress(ValueError):  # the load itself refuses a wrong value
        for each in declarations(request.config.get(STATES.name, "")):
            kept |= {each.input, each.output}
    for kind, ports in (("input", network.inputs), ("output", network.outputs)):
        for port in ports:
            if port.name not in kept and not _has_rows(port):
                raise InvalidArgument(
                    f"{kind} {port.name!r} of the model has no first dimension of any size, which "
                    f"{_FIELD} needs; leave {_FIELD} out, or give 0",
                    field=_FIELD,
                )


def _has_rows(port: Port) -> bool:
    if port.shape is None:
        return True
    return len(port.shape) > 0 and not isinstance(port.shape[0], int)
