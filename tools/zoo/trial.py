"""One network on one device of a running server: query, load, requests."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from grpc import StatusCode

from headrace.client import Client, Error, Network, QueryResult
from headrace.client.errors import InvalidArgument
from tools.zoo.comparison import CLOSE, OWN_TIMES, RIGHT, largest_error, mismatch
from tools.zoo.inputs import Inputs
from tools.zoo.reference import Answer

T = TypeVar("T")

# How a device may refuse a network or a request. Anything else is a fault of the server.
_REFUSALS = (
    StatusCode.INVALID_ARGUMENT,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.UNIMPLEMENTED,
    StatusCode.RESOURCE_EXHAUSTED,
)
# So many requests at once, so that batches come about and every device of a list has work; one of
# a network that is slower stands for all.
_AT_ONCE = 4
_WORKER = "worker process"  # in the error when that of a device has ended
_QUICK_SECONDS = 1.0


class Outcome(enum.Enum):
    RIGHT = "right"
    AS_ITSELF = "as itself"
    CLOSE = "close"
    REFUSED = "refused"
    SLOW = "slow"
    WRONG = "wrong"
    FAILED = "fails"
    DISAGREES = "query and load disagree"
    ENDED = "ends the process"
    HUNG = "hangs"


# After these the server is of no more use.
FATAL = frozenset((Outcome.ENDED, Outcome.HUNG))
FAILURES = frozenset(
    (Outcome.WRONG, Outcome.FAILED, Outcome.DISAGREES, Outcome.ENDED, Outcome.HUNG)
)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a network on a device.

    Attributes:
        error: the largest of any output, relative to its largest number; infinite if shapes or the
            places of NaN and infinity differ.
        reason: why it is not right; the same in each run.
        detail: where it happened, for whoever looks into it.
        seconds: what all of it took.
        refused: why it refuses the smallest request, which ONNX Runtime answers; "" if it does not.
        own: ONNX Runtime's own error, if the outcome depends on it.
    """

    outcome: Outcome
    error: float = 0.0
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0
    refused: str = ""
    own: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a step may take, and all of them together if it is no fault to take longer."""

    load_seconds: float
    infer_seconds: float
    all_seconds: float = math.inf


class _End(Exception):
    """The trial is over."""

    def __init__(self, outcome: Outcome, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.detail = outcome, reason, detail


class Trial:
    """One network on one device.

    `is_alive` says whether the server's process still runs, and `own_error` how far ONNX Runtime is
    from itself, which takes long and is seldom asked for. `config` is that of the load.

    After a failure the network may still be loaded; the next one takes its place.
    """

    def __init__(
        self,
        client: Client,
        device: str,
        limits: Limits,
        is_alive: Callable[[], bool],
        own_error: Callable[[], float],
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._device = device
        self._limits = limits
        self._deadline = math.inf
        self._is_alive = is_alive
        self._own_error = own_error
        self._config = config or {}
        self._error = 0.0
        self._worst = self._refused = ""

    def run(self, path: Path, requests: Sequence[Inputs], expected: Sequence[Answer]) -> Result:
        start = time.monotonic()
        self._deadline = start + self._limits.all_seconds
        try:
            network = self._load(path)
            for request, answer in zip(requests, expected, strict=True):
                self._ask(network, request, answer)
            self._try(lambda: network.unload(timeout=self._load_seconds), "unload")
        except _End as end:
            seconds = time.monotonic() - start
            return Result(end.outcome, self._error, end.reason, end.detail, seconds)
        seconds = time.monotonic() - start
        if self._error <= RIGHT:
            return Result(Outcome.RIGHT, self._error, "", "", seconds, self._refused)
        own = self._own_error()
        if self._error <= OWN_TIMES * own:
            outcome = Outcome.AS_ITSELF
        else:
            outcome = Outcome.CLOSE if self._error <= CLOSE else Outcome.WRONG
        return Result(outcome, self._error, self._worst, "", seconds, self._refused, own)

    @property
    def _load_seconds(self) -> float:
        return self._left(self._limits.load_seconds)

    @property
    def _infer_seconds(self) -> float:
        return self._left(self._limits.infer_seconds)

    def _left(self, seconds: float) -> float:
        return max(0.1, min(seconds, self._deadline - time.monotonic()))

    def _load(self, path: Path) -> Network:
        """The loaded network; query and load have to agree."""
        device = self._device
        answer = self._try(
            lambda: self._client.query_network(
                path, device, config=self._config, timeout=self._load_seconds
            ),
            "query",
        )
        network = self._try(
            lambda: self._client.load_network(
                path,
                device,
                config=self._config,
                name="zoo",
                replace=True,
                timeout=self._load_seconds,
            ),
            "load",
        )
        says_no = _reason(answer) if isinstance(answer, QueryResult) else str(answer)
        if isinstance(network, Network):
            if says_no:
                raise _End(Outcome.DISAGREES, f"the query said no, the load went well: {says_no}")
            return network
        if not says_no:
            raise _End(Outcome.DISAGREES, f"the query said yes, the load refused: {network}")
        raise _End(Outcome.REFUSED, says_no, str(network))

    def _ask(self, network: Network, request: Inputs, answer: Answer) -> None:
        """One request, and then some at once."""
        where = f"infer with {request}"
        start = time.monotonic()
        found = [
            self._try(lambda: network.infer(request.arrays, timeout=self._infer_seconds), where)
        ]
        quick = time.monotonic() - start < _QUICK_SECONDS
        if quick and not isinstance(found[0], Error):
            many = network.infer_many([request.arrays] * _AT_ONCE, timeout=self._infer_seconds)
            found += self._try_all(lambda: [outputs for _, outputs in many], where)
        for outputs in found:
            if isinstance(outputs, Error):
                if answer.failure and outputs.code in _REFUSALS:
                    continue
                if request.is_smallest and isinstance(outputs, InvalidArgument):
                    self._refused = str(outputs)
                    continue
                raise self._end(outputs, where)
            if answer.failure:
                continue  # a device may run what ONNX Runtime does not
            if difference := mismatch(outputs, answer.outputs):
                raise _End(Outcome.WRONG, difference, where)
            error, text = largest_error(outputs, answer.outputs)
            if error > self._error:
                self._error, self._worst = error, f"{text}, with {request}"

    def _try_all(self, call: Callable[[], list[T]], where: str) -> list[T | Error]:
        found = self._try(call, where)
        return [found] if isinstance(found, Error) else [*found]

    def _try(self, call: Callable[[], T], where: str) -> T | Error:
        """What the call returns, or the refusal that it raised."""
        try:
            return call()
        except Error as error:
            removed = "Stream removed" in str(error)
            if error.code in _REFUSALS and not removed and _WORKER not in str(error):
                return error
            raise self._end(error, where) from error

    def _end(self, error: Error, where: str) -> _End:
        """What an error means that is no refusal."""
        step, text = where.split()[0], f"{error.code.name}: {error}"
        if error.code is StatusCode.DEADLINE_EXCEEDED:
            slow = np.isfinite(self._deadline) and self._is_responsive()
            outcome = Outcome.SLOW if slow else Outcome.HUNG
            return _End(outcome, f"{step} took too long", f"{where}: {text}")
        # The process may take a moment to end after the connection has.
        ended = _WORKER in text or not self._is_alive()
        outcome = Outcome.ENDED if ended else Outcome.FAILED
        return _End(outcome, f"{step}: {text}", f"{where}: {text}")

    def _is_responsive(self) -> bool:
        try:
            self._client.networks(timeout=20.0)
        except Error:
            return False
        return True


def _reason(answer: QueryResult) -> str:
    """Why layers are not supported, by reason; "" if all are."""
    op_types: dict[str, list[str]] = {}
    for layer in answer.unsupported:
        op_types.setdefault(layer.reason, []).append(layer.op_type)
    most = sorted(op_types, key=lambda reason: len(op_types[reason]), reverse=True)
    return "; ".join(f"{_listed(op_types[reason])}: {reason}" for reason in most[:2])


def _listed(op_types: Iterable[str]) -> str:
    """The operators, each once; only the first three of many."""
    names = list(dict.fromkeys(op_types))
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
