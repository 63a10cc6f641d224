"""Loads a network in other ways, beside itself, and measures each."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from headrace.client import aio, errors
from headrace.client.cli.benchmark.load import Ask, BenchmarkRun
from headrace.client.cli.benchmark.results import Results
from headrace.client.cli.tune.candidates import PRECISION, Variant
from headrace.client.cli.tune.difference import largest_difference
from headrace.client.cli.tune.figures import CallersFigures, next_callers
from headrace.client.cli.tune.halving import Trial
from headrace.client.outputs import Outputs
from headrace.client.plans import infer_plans
from headrace.client.plans.plan import Budget, CallMethod
from headrace.v1 import inference_engine_pb2 as pb

_LEVELS: Final = 2  # numbers of callers in one round
_WARM_UP: Final = 0.1  # of a measurement
_FEWEST: Final = 5  # requests of one caller in a measurement
_TIMEOUT_SECONDS: Final = 30.0
_UNLOAD_SECONDS: Final = 30.0
_LAST: Final = -10
"""The priority of the requests: those of others overtake them."""
_ALONE: Final = {"UNLOAD_AFTER_IDLE": "60", "RESPONSE_CACHE": "NO"}
"""The server unloads what this program could not, and computes each request."""


class Measurement:
    """Measures ways to load one network.

    Args:
        blob: the network.
        feeds: the inputs of the requests.
        target: the 99th percentile that is wanted, in seconds.
        precision: how far answers may be off in f16 and bf16.

    Attributes:
        name: the name of the networks that it loads, one after the other.
    """

    def __init__(
        self,
        client: aio.Client,
        blob: bytes,
        feeds: Sequence[Mapping[str, Any]],
        target: float,
        precision: float,
    ) -> None:
        self.name = f"tune-{secrets.token_hex(4)}"
        self._client = client
        self._blob = blob
        self._feeds = feeds
        self._target = target
        self._precision = precision
        self._answers: list[Outputs] = []

    async def answer(self) -> None:
        """Has CPU give the right answers, in float32. Raises as a load and a request."""
        async with self._loaded(Variant("CPU", {PRECISION: "f32"})) as network:
            self._answers = [await network.infer(feed) for feed in self._feeds]

    async def measure(self, trial: Trial, seconds: float) -> None:
        """Loads a candidate and measures it. A reason why it cannot be chosen is noted.

        Raises:
            Error: the fault is not the candidate's.
        """
        try:
            async with self._loaded(trial.candidate) as network:
                if PRECISION in trial.candidate.config:
                    trial.reason = await self._why_off(network)
                if not trial.reason:
                    trial.turns.append(await self._at_levels(network, trial, seconds))
        except (errors.Unauthenticated, errors.PermissionDenied):
            raise
        except errors.Error as error:
            if isinstance(error, errors.Unavailable) and not error.details.reason:
                raise  # the server is gone
            trial.reason = str(error)

    @asynccontextmanager
    async def _loaded(self, candidate: Variant) -> AsyncIterator[aio.Network]:
        device, config = candidate
        try:
            network = await self._client.import_network(
                self._blob, device, name=self.name, config={**config, **_ALONE}
            )
        except asyncio.CancelledError:
            await self._unload()  # the load may have ended before the server knew
            raise
        try:
            yield network
        finally:
            await self._unload()

    async def _unload(self) -> None:
        request = pb.UnloadNetworkRequest(name=self.name)
        with suppress(errors.Error):  # the server does it later
            await self._client.do(CallMethod("UnloadNetwork", request, _UNLOAD_SECONDS))

    async def _why_off(self, network: aio.Network) -> str:
        """Why the network's answers are too far off; empty if they are not."""
        pairs = zip(self._feeds, self._answers, strict=True)
        off = [largest_difference(await network.infer(feed), right) for feed, right in pairs]
        if max(off) <= self._precision:
            return ""
        return f"its answers are off by {max(off):.2g} of their largest number"

    def _callers(
        self, trial: Trial, found: Sequence[CallersFigures], start: int, most: int
    ) -> int | None:
        """With how many callers to go on; None to end.

        Args:
            found: in this turn.
            most: how many numbers of callers may be tried in it.
        """
        before = trial.turns[-1] if trial.turns else ()
        return next_callers(found, start, self._target, before) if len(found) < most else None

    async def _at_levels(
        self, network: aio.Network, trial: Trial, seconds: float
    ) -> list[CallersFigures]:
        """Measures with some numbers of callers."""
        encode = network.encoder.encode_bytes
        requests = [encode(dict(feed), priority=_LAST) for feed in self._feeds]

        async def ask(number: int) -> Outputs:
            data = requests[number % len(requests)]
            return await self._client.run(infer_plans.infer_packed(data, Budget(_TIMEOUT_SECONDS)))

        if trial.turns:
            best = trial.best(self._target)
            start = best.callers if best.score(self._target)[0] else max(1, best.callers // 2)
        else:
            optimal = await network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
            assert isinstance(optimal, int)
            start = max(1, optimal)
        found: list[CallersFigures] = []
        least = _FEWEST * await _usual_seconds(ask, len(requests))
        levels = 1 if least > seconds / _LEVELS else _LEVELS
        share = max(seconds / levels, least)
        while (callers := self._callers(trial, found, start, levels)) is not None:
            run = BenchmarkRun(ask, _WARM_UP * share, (1 - _WARM_UP) * share)
            found.append(_figures(callers, await run.closed(callers)))
        return found


async def _usual_seconds(ask: Ask, count: int) -> float:
    """What a request takes, once each of them has been sent: the first ones may be slow."""
    took = []
    for number in range(count):
        begin = time.monotonic()
        await ask(number)
        took.append(time.monotonic() - begin)
    return statistics.median(took)


def _figures(callers: int, results: Results) -> CallersFigures:
    spread = results.spreads().get("latency")
    p99 = float("inf") if spread is None or results.errors else spread.percentiles[99]
    return CallersFigures(callers, results.throughput, p99)
