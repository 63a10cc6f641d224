"""Checks that a network takes batches, if its load says so, or makes it take them."""

from __future__ import annotations

from contextlib import suppress

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.loading.auto_batching import BATCHING_DEVICE
from headrace.runtime.network.network import Network, Port
from headrace.runtime.network.rows import with_rows
from headrace.runtime.sequences.keys import STATES, declarations
from headrace.runtime.transform.options import LoadRequest

_FIELD = "max_batch_size"


def check_batch_size(network: Network, request: LoadRequest) -> None:
    """
    Raises:
        InvalidArgument: `max_batch_size` is set, but an input or output that clients see has no
            first dimension of any size. For BATCH it may also be 1.
    """
    if not request.presentation.max_batch_size:
        return
    fixed, kept = (1,) if _is_tried(request) else (), set[str]()
    with suppress(ValueError):  # the load itself refuses a wrong value
        for state in declarations(request.config.get(STATES.name, "")):
            kept |= {state.input, state.output}
    for kind, ports in (("input", network.inputs), ("output", network.outputs)):
        for port in ports:
            if port.name not in kept and not _has_rows(port, fixed):
                raise InvalidArgument(
                    f"{kind} {port.name!r} of the model has no first dimension of any size, which "
                    f"{_FIELD} needs; leave {_FIELD} out, or give 0",
                    field=_FIELD,
                )


def with_batch(network: Network, request: LoadRequest) -> Network:
    """The network with a first dimension of any size, if `max_batch_size` says that the first
    dimension, which the model fixes at 1, is the batch's. Only for BATCH, which tries out whether
    that holds."""
    if not request.presentation.max_batch_size or not _is_tried(request):
        return network
    if any(_has_rows(port) for port in network.inputs):
        return network
    return with_rows(network, "batch", outputs=True)


def _is_tried(request: LoadRequest) -> bool:
    return BATCHING_DEVICE in request.device.types()


def _has_rows(port: Port, fixed: tuple[int, ...] = ()) -> bool:
    """Whether the first dimension may have any size, or one of those `fixed`."""
    if port.shape is None:
        return True
    return len(port.shape) > 0 and (not isinstance(port.shape[0], int) or port.shape[0] in fixed)
