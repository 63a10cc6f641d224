"""Loads a network so that its requests run together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """A load of a network on the target so that its requests run together.

    Args:
        read: makes the network as the caller sees it.
        size: most rows of a batch.
        plain: the network if the target has loaded it already. It stays open, and runs the
            batches.
    """

    read: Callable[[], Network]
    config: Configuration
    target: Target
    size: int
    token: CancelToken
    plain: ExecutableNetwork | None = None

    def anew(self) -> LoadResult:
        """
        Raises:
            CannotBatch: its requests cannot run together. If the target has loaded the network
                already, the result says so instead, for the cache.
            What the target raises.
        """
        try:
            return self._found()
        except CannotBatch as error:
            if self.plain is None:
                raise
            return self._joined(self.plain.network, self.plain, Found(apart=error.message))

    def restored(self, entry: bytes) -> LoadResult:
        """The network as an earlier load has found that its requests can run together, or cannot.
        It is read only if the target needs its graph."""
        found = Found(**json.loads(entry))
        if found.apart:
            assert self.plain is not None  # the entry's key says so
            return replace(self._joined(self.plain.network, self.plain, found), restored=True)
        whole = given = unread(self.read, found.whole)
        if found.padded_to:
            given = unread(lambda: with_rows(whole, self.size), found.given)
        return replace(self._joined(whole, self._inner(given), found), restored=True)

    # -- inside --

    def _found(self) -> LoadResult:
        if self.plain is not None:
            check_ports(self.plain)  # they are the network's, which need not be made for it
        whole = self.read()
        check_ports(whole)
        given, padded_to, notes = whole, 0, list[str]()
        try:
            inner = self._inner(whole)
        except _MAY_BE_THE_SIZES as error:
            # If the sizes are not the cause, the next load raises the error again.
            given, padded_to = with_rows(whole, self.size), self.size
            inner, name = self._inner(given), self.target.name
            notes = [
                f"batches are padded to {padded_to} rows, because {name} said: {error.message}"
            ]
        try:
            check_layers(whole)  # after the device has named the layers that it does not support
            shared = _tried(whole, inner, padded_to, min(ROWS, self.size), self.token)
            check_shared(whole, shared)
        except BaseException:
            if self.plain is None:
                inner.close()
            raise
        rows = f"requests run together, up to {self.size} rows"
        found = Found(
            whole=told_of(whole),
            given=told_of(given) if padded_to else {},
            shared=sorted(shared),
            padded_to=padded_to,
            notes=[f"{rows}: each row gave the same alone and among others", *notes],
        )
        return self._joined(whole, inner, found)

    def _inner(self, network: Network) -> ExecutableNetwork:
        config, options = self.target.config, self.target.options
        load = Load(network, config, options, token=self.token)
        return self.plain or self.target.plugin.load_network(load)

    def _joined(self, whole: Network, inner: ExecutableNetwork, found: Found) -> LoadResult:
        executors, lent = self.target.plugin.services.executors, self.plain is not None
        made = BatchNetwork(whole, self.config, inner, self.size, found, executors, lent=lent)
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
