"""Runs a request on a shadow, and compares the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.runtime.config.standard_keys import INFERENCE_PRECISION_HINT
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    HeadraceError,
    QueueFull,
    Unavailable,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.loading.entry import NetworkEntry
from headrace.runtime.network.comparison import difference
from headrace.runtime.network.values import Value

_RUN_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 2.0
"""How long a run may go on after it was cancelled. Then others' shadows wait for it no longer."""
_PRIORITY: Final = -10
_PRECISIONS: Final = ("f32", "f16", "bf16")  # the least precise one last


@dataclass(frozen=True, slots=True)
class ShadowSample:
    """A request with its answer.

    Attributes:
        entry: the network that has answered. The sample holds no reference to it.
        precision: in which that has computed.
    """

    entry: NetworkEntry
    inputs: Mapping[str, Value]
    output_names: tuple[str, ...]
    outputs: Mapping[str, Value]
    precision: str
    owner: str


class ShadowOutcome(NamedTuple):
    """
    Attributes:
        outcome: one of `OUTCOMES`.
        why: the shadow failed, or its answer differs.
        relative: as `Difference`; None without an answer.
    """

    outcome: str
    why: str = ""
    relative: float | None = None


DROPPED: Final = ShadowOutcome("dropped")


def failure(error: BaseException) -> ShadowOutcome:
    known = isinstance(error, HeadraceError)
    return ShadowOutcome("failed", str(error) if known else type(error).__name__)


def compare(
    sample: ShadowSample,
    entry: NetworkEntry,
    token: CancelToken,
    idle: threading.Event,
    give_back: Callable[[], object],
) -> ShadowOutcome:
    """
    Args:
        entry: the shadow, with a reference.
        token: of the shadow.
        idle: set while the shadow runs no request. A run that ignores its cancel goes on
            afterwards.
        give_back: gives the reference back.
    """
    assert entry.executable is not None
    network = entry.executable.behind  # no kept reply, and none that others get
    admission = network.place.admission
    if 2 * admission.in_flight > admission.capacity:
        give_back()
        return DROPPED
    job = _run(sample, entry, network, token.child(), idle, give_back)
    if job is None:
        return ShadowOutcome("failed", f"a run goes on {_PATIENCE_SECONDS:g} s after its cancel")
    if isinstance(job.error, Cancelled | DeadlineExceeded | Unavailable | QueueFull):
        return DROPPED
    if job.error is not None:
        return failure(job.take_error())
    precision = max(sample.precision, precision_of(network), key=_PRECISIONS.index)
    whose = f"version {sample.entry.key.version}"
    relative, why = difference(job.outputs, sample.outputs, precision, whose)
    return ShadowOutcome("differs" if why else "close" if relative else "equal", why, relative)


def precision_of(network: ExecutableNetwork) -> str:
    """In which the network computes, as its configuration says."""
    said = network.config.get(INFERENCE_PRECISION_HINT)
    return said if said in _PRECISIONS else _PRECISIONS[0]


def _run(
    sample: ShadowSample,
    entry: NetworkEntry,
    network: ExecutableNetwork,
    token: CancelToken,
    idle: threading.Event,
    give_back: Callable[[], object],
) -> Job | None:
    """The request's end on the shadow; None if it goes on after its cancel."""

    def ended(_: Job) -> None:
        token.close()
        give_back()
        idle.set()

    job = Job(
        sample.inputs,
        ended,
        output_names=sample.output_names,
        deadline=time.monotonic() + _RUN_SECONDS,
        priority=_PRIORITY,
        token=token,
        trace="shadow",
        owner=sample.owner,
    )
    job.network, job.version, job.generation = entry.key
    idle.clear()
    try:
        network.submit(job)
    except Exception as error:
        ended(job)
        if not isinstance(error, HeadraceError):
            raise
        job.error = error
    return job if idle.wait(_RUN_SECONDS + _PATIENCE_SECONDS) else None
