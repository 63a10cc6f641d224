"""Loads a network so that its requests run together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from headrace.plugins.batch.claims.mixing import (
    CannotBatch,
    check_layers,
    check_ports,
    check_shared,
)
from headrace.plugins.batch.claims.trial import ROWS, Inconclusive, Run, sample, try_out
from headrace.plugins.batch.executable_network import BatchNetwork, Found
from headrace.plugins.batch.running import rows as rows_of
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import INFERENCE_PRECISION_HINT
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.errors import FailedPrecondition, InvalidModel, Unimplemented
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.network.rows import with_rows
from headrace.runtime.network.values import Value
from headrace.runtime.virtual import timing
from headrace.runtime.virtual.entries import told_of, unread
from headrace.runtime.virtual.members import Target

_MAY_BE_THE_SIZES = (FailedPrecondition, InvalidModel, Unimplemented)
"""Errors that a device may raise because it takes fixed sizes only."""


def load(
    read: Callable[[], Network],
    config: Configuration,
    target: Target,
    size: int,
    token: CancelToken,
    plain: ExecutableNetwork | None = None,
) -> LoadResult:
    """Loads a network on the target so that its requests run together.

    Args:
        read: makes the network as the caller sees it.
        size: most rows of a batch.
        plain: the network if the target has loaded it already. It stays open, and runs the
            batches.

    Raises:
        FailedPrecondition: its requests cannot run together. The message says why.
        What the target raises.
    """
    if plain is not None:
        check_ports(plain)  # they are the network's, which need not be made for it
    whole = read()
    check_ports(whole)
    given, padded_to, notes = whole, 0, list[str]()
    try:
        inner = plain or _load(whole, target, token)
    except _MAY_BE_THE_SIZES as error:
        # If the sizes are not the cause, the next load raises the error again.
        given, padded_to = with_rows(whole, size), size
        inner = _load(given, target, token)
        notes = [f"batches are padded to {size} rows, because {target.name} said: {error.message}"]
    try:
        check_layers(whole)  # after the device has named the layers that it does not support
        shared = _tried(whole, inner, padded_to, min(ROWS, size), token)
        check_shared(whole, shared)
    except BaseException:
        if plain is None:
            inner.close()
        raise
    text = (
        f"requests run together, up to {size} rows: each row gave the same alone and among others"
    )
    found = Found(
        whole=told_of(whole),
        given=told_of(given) if padded_to else {},
        shared=sorted(shared),
        padded_to=padded_to,
        notes=[text, *notes],
    )
    return _made(whole, config, target, size, found, inner, lent=plain is not None)


def restore(
    read: Callable[[], Network],
    config: Configuration,
    target: Target,
    size: int,
    token: CancelToken,
    plain: ExecutableNetwork | None,
    native: bytes,
) -> LoadResult:
    """Loads a network as an earlier load found that its requests can run together. The network is
    read only if the target needs its graph.

    Args:
        native: the entry of the earlier load.
    """
    found = Found(**json.loads(native))
    whole = unread(read, found.whole)
    given = unread(lambda: with_rows(whole, size), found.given) if found.given else whole
    inner = plain or _load(given, target, token)
    made = _made(whole, config, target, size, found, inner, lent=plain is not None)
    return replace(made, restored=True)


def _made(
    whole: Network,
    config: Configuration,
    target: Target,
    size: int,
    found: Found,
    inner: ExecutableNetwork,
    *,
    lent: bool,
) -> LoadResult:
    executors = target.plugin.services.executors
    made = BatchNetwork(whole, config, inner, size, found, executors, lent=lent)
    return LoadResult(made, (*found.notes, *inner.notes), from_cache=inner.loaded_from_cache)


def runner(network: ExecutableNetwork, token: CancelToken, padded_to: int = 0) -> Run:
    """A function that runs rows on a network. If `padded_to` is not 0, the network takes exactly
    that many rows."""

    def run(inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        count = len(next(iter(arrays.values())))
        missing = max(0, padded_to - count)
        if missing:
            arrays = {
                name: np.concatenate([array, *[array[-1:]] * missing])
                for name, array in arrays.items()
            }
        outputs = timing.run(network, arrays, token)
        if not missing:
            return outputs
        shared = {
            name
            for name, value in outputs.items()
            if not (shape := np.asarray(value).shape) or shape[0] % padded_to
        }
        return rows_of.part(outputs, [count], frozenset(shared), padded_to)[0]

    return run


def _load(network: Network, target: Target, token: CancelToken) -> ExecutableNetwork:
    return target.plugin.load_network(Load(network, target.config, target.options, token=token))


def _tried(
    whole: Network, inner: ExecutableNetwork, padded_to: int, count: int, token: CancelToken
) -> frozenset[str]:
    """The outputs without a batch dimension, found by a trial.

    Raises:
        CannotBatch: rows depend on each other, or the trial could not tell.
        What a run raises.
    """
    run = runner(inner, token, padded_to)
    precise = inner.config.get(INFERENCE_PRECISION_HINT) not in ("f16", "bf16")
    try:
        why, shared = try_out(sample(whole.inputs, run, count), run, precise=precise)
    except Inconclusive as reason:
        raise CannotBatch(f"a trial could not tell whether its rows stay apart: {reason}") from None
    if why:
        raise CannotBatch(f"a trial has shown that {why}")
    return shared
