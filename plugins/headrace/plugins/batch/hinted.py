"""Loads a network for throughput: with batches if they are possible and pay, otherwise without."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from headrace.plugins.batch import loading, measurement
from headrace.plugins.batch.claims.trial import Inconclusive, sample
from headrace.plugins.batch.executable_network import BatchNetwork
from headrace.runtime.config.standard_keys import ALLOW_AUTO_BATCHING
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import Cancelled, HeadraceError, Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.timer import Timer
from headrace.runtime.network.values import Array
from headrace.runtime.virtual import timing

_log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
LOADS: Final = 3
"""How many times as long as the first load the second load may take before it is given up."""


def choose(
    load: Callable[[], ExecutableNetwork],
    batched: Callable[[ExecutableNetwork, CancelToken], BatchNetwork],
    size: int,
    token: CancelToken,
    timer: Timer,
) -> ExecutableNetwork:
    """The network served in the better of two ways. Its note says which way, and why. A device that
    is busy with other networks does not delay the load for long.

    Args:
        load: loads the network on the device without batches.
        batched: loads the network with its requests joined. It may run its batches on the network
            that `load` returned.
        size: most rows of a batch.

    Raises:
        What `load` raises. Cancelled, Unavailable: both networks are closed then.
    """
    begun = time.monotonic()
    plain = load()
    took = time.monotonic() - begun
    wanted = measurement.wanted_seconds(took)
    bounded, busy = token.child(), Cancelled("the device is too busy")
    patience = PATIENCE_SECONDS + LOADS * took
    entry = timer.schedule(time.monotonic() + patience, lambda: bounded.cancel(busy))
    try:
        found, why = _choose(plain, batched, size, wanted, bounded)
    except Cancelled:
        if bounded.error is not busy:
            plain.close()
            raise
        found = plain
        why = f"whether batches pay was not measured: the device was too busy for {patience:.0f} s"
    except BaseException:
        plain.close()
        raise
    finally:
        timer.cancel(entry)
        bounded.close()
    if found is plain:
        why = f"served unbatched: {why}"
        found.config = found.config.schema.resolve(
            found.config.explicit_strings(), {ALLOW_AUTO_BATCHING.name: "NO"}
        )
    found.notes = (why, *found.notes)  # the reason is known only after both are open
    _log.info("a network on %s: %s", found.place.device, why)
    return found


def _choose(
    plain: ExecutableNetwork,
    batched: Callable[[ExecutableNetwork, CancelToken], BatchNetwork],
    size: int,
    wanted: float,
    token: CancelToken,
) -> tuple[ExecutableNetwork, str]:
    """The network to serve, and why it was chosen. If that is the batched one, `plain` is closed or
    taken over; otherwise the batched one is closed."""
    try:
        ((row, _),) = sample(plain.inputs, loading.runner(plain, token), 1).rows
    except Inconclusive as why:
        return plain, f"whether batches pay cannot be measured: {why}"
    one = min(timing.seconds(plain, [row], token) for _ in range(2))
    batches = measurement.batches_a_round(one, size, wanted)
    if not batches:
        return plain, (
            f"whether batches pay was not measured: time budget, of "
            f"{measurement.LEAST_SECONDS:g} s, for runs of {one:.3f} s each"
        )
    try:
        other = batched(plain, token)
    except (Cancelled, Unavailable):
        raise
    except HeadraceError as error:
        return plain, error.message
    requests = [row] * (size * batches + 1)
    try:
        found = measurement.compare(plain, other, requests, wanted, token)
    except BaseException:
        other.close()
        raise
    gained = (
        f"{found.gain:.2f} times the throughput of requests apart, measured in "
        f"{found.seconds:.1f} s{_sizes(plain, row)}"
    )
    if not found.pays:
        other.close()
        return plain, f"batches of up to {size} rows have {gained}"
    other.take_over()
    return other, f"batches of up to {size} rows: {gained}"


def _sizes(network: ExecutableNetwork, row: Mapping[str, Array]) -> str:
    """The sizes that were chosen for dynamic dimensions. With other sizes, batches may pay more or
    less."""
    chosen = [
        f"{port.name}[{','.join(map(str, row[port.name].shape))}]"
        for port in network.inputs
        if any(not isinstance(size, int) for size in (port.shape or ())[1:])
    ]
    return f" with {', '.join(chosen)}" if chosen else ""
