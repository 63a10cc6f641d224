"""Loads for throughput: with batches where they can be made and pay, otherwise without."""

from __future__ import annotations

from collections.abc import Callable

from headrace.plugins.batch import loading, measurement
from headrace.plugins.batch.executable_network import BatchNetwork
from headrace.plugins.batch.trial import Inconclusive, sample
from headrace.runtime.cancel import CancelToken
from headrace.runtime.errors import Cancelled, HeadraceError, Unavailable
from headrace.runtime.executable_network import ExecutableNetwork
from headrace.runtime.standard_keys import ALLOW_AUTO_BATCHING


def choose(
    plain: ExecutableNetwork, batched: Callable[[], ExecutableNetwork], token: CancelToken
) -> ExecutableNetwork:
    """The better of two ways to serve a network; the other one is closed, and a note tells why.

    Args:
        plain: the network as the device has it by itself.
        batched: loads it with its requests joined.

    Raises:
        Cancelled, Unavailable: both are closed then.
    """
    try:
        return _choose(plain, batched, token)
    except BaseException:
        plain.close()
        raise


def _choose(
    plain: ExecutableNetwork, batched: Callable[[], ExecutableNetwork], token: CancelToken
) -> ExecutableNetwork:
    try:
        other = batched()
    except (Cancelled, Unavailable):
        raise
    except HeadraceError as error:
        return _unbatched(plain, error.message)
    assert isinstance(other, BatchNetwork)
    try:
        rows = sample(plain.inputs, loading.runner(plain, token)).rows
        found = measurement.compare(plain, other, rows, other.size, token)
    except Inconclusive as why:
        other.close()
        return _unbatched(plain, f"whether batches pay cannot be measured: {why}")
    except BaseException:
        other.close()
        raise
    if found.pays:
        other.notes = (
            f"batches of up to {other.size} rows: {found.gain:.2f} times the throughput of "
            f"requests apart, measured in {found.seconds:.1f} s",
            *other.notes,
        )
        plain.close()
        return other
    size = other.size
    other.close()
    if not found.gain:
        return _unbatched(plain, "one run takes too long to measure whether batches pay")
    return _unbatched(
        plain,
        f"batches of up to {size} rows have {found.gain:.2f} times the throughput of requests "
        f"apart, measured in {found.seconds:.1f} s",
    )


def _unbatched(plain: ExecutableNetwork, why: str) -> ExecutableNetwork:
    plain.notes += (f"served unbatched: {why}",)
    plain.config = plain.config.schema.resolve(
        plain.config.explicit_strings(), {ALLOW_AUTO_BATCHING.name: "NO"}
    )
    return plain
