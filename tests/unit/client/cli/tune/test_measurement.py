"""How ``headrace tune`` loads and unloads what it measures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.client import errors
from headrace.client.cli.tune.candidates import Variant
from headrace.client.cli.tune.figures import CallersFigures
from headrace.client.cli.tune.halving import Trial
from headrace.client.cli.tune.measurement import Measurement
from headrace.wire.errors import ErrorDetails

FEED = {"x": np.array([1, 4], np.float32)}
COARSE = Variant("CPU", {"INFERENCE_PRECISION_HINT": "f16"})


def refused(kind: type[errors.Error], reason: str = "") -> errors.Error:
    return kind(ErrorDetails(grpc.StatusCode.UNKNOWN, "no such key", reason=reason))


class Network:
    """Adds half a unit to what comes."""

    async def infer(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": feed["x"] + np.float32(0.5)}


class Client:
    """Notes what is loaded, with which keys, and what is unloaded."""

    def __init__(self, failure: errors.Error | None = None, *, hangs: bool = False) -> None:
        self._failure, self._hangs = failure, hangs
        self.loading = asyncio.Event()
        self.configs: list[Mapping[str, str]] = []
        self.loaded: list[str] = []
        self.unloaded: list[str] = []

    async def import_network(
        self, blob: bytes, device: str, *, name: str, config: Mapping[str, str]
    ) -> Network:
        self.configs.append(config)
        self.loading.set()
        if self._failure is not None:
            raise self._failure
        if self._hangs:
            await asyncio.Event().wait()
        self.loaded.append(name)
        return Network()

    async def do(self, step: Any) -> None:
        assert step.method == "UnloadNetwork"
        self.unloaded.append(step.request.name)
        raise refused(errors.NotFound)  # it may be gone already


def measurement(client: Any, precision: float = 0.0) -> Measurement:
    return Measurement(client, b"", [FEED], 1.0, precision)


def measured(client: Client, candidate: Variant, precision: float = 0.0) -> Trial:
    trial = Trial(candidate)
    found = measurement(client, precision)
    found._answers = [{"y": FEED["x"]}]  # type: ignore[list-item]
    asyncio.run(found.measure(trial, 0.1))
    return trial


def test_the_server_unloads_what_the_program_cannot_and_computes_each_request() -> None:
    client = Client()
    measured(client, COARSE)
    assert client.configs == [
        {"INFERENCE_PRECISION_HINT": "f16", "UNLOAD_AFTER_IDLE": "60", "RESPONSE_CACHE": "NO"}
    ]
    assert client.loaded == client.unloaded


def test_two_programs_load_under_names_of_their_own() -> None:
    assert measurement(Client()).name != measurement(Client()).name


def test_a_candidate_whose_answers_are_too_far_off_is_left_out_with_the_reason() -> None:
    trial = measured(Client(), COARSE, 0.1)
    assert trial.reason == "its answers are off by 0.12 of their largest number"
    assert trial.turns == []


def test_a_candidate_that_cannot_be_loaded_is_left_out_with_the_reason() -> None:
    client = Client(refused(errors.InvalidArgument))
    assert measured(client, Variant("CPU", {})).reason == "no such key"
    assert client.unloaded == []


@pytest.mark.parametrize(
    "failure",
    [
        refused(errors.PermissionDenied),
        refused(errors.Unauthenticated),
        refused(errors.Unavailable),
    ],
)
def test_without_a_server_or_leave_nothing_goes_on(failure: errors.Error) -> None:
    with pytest.raises(type(failure)):
        measured(Client(failure), Variant("CPU", {}))


def test_a_device_that_is_down_is_left_out() -> None:
    client = Client(refused(errors.Unavailable, "DEVICE_DOWN"))
    assert measured(client, Variant("CPU", {})).reason == "no such key"


def test_a_load_that_is_given_up_is_unloaded_if_it_has_ended_meanwhile() -> None:
    async def give_up() -> Client:
        client = Client(hangs=True)
        found = measurement(client)
        task = asyncio.ensure_future(found.measure(Trial(Variant("CPU", {})), 0.1))
        await client.loading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.unloaded == [found.name]
        return client

    asyncio.run(give_up())


@pytest.mark.parametrize(("p99", "first"), [(0.5, 8), (2.0, 4)])
def test_a_turn_starts_at_the_number_before_or_at_half_of_it_if_that_missed_the_target(
    p99: float, first: int
) -> None:
    async def answer(_: object) -> Any:
        await asyncio.sleep(0)
        timings = SimpleNamespace(queue_seconds=0.0, execution_seconds=0.0)
        return SimpleNamespace(timings=timings)

    encoder = SimpleNamespace(encode_bytes=lambda *_, **__: b"")
    network: Any = SimpleNamespace(encoder=encoder)
    trial = Trial(COARSE, [[CallersFigures(8, 10.0, p99)]])
    found = measurement(SimpleNamespace(run=answer))
    figures = asyncio.run(found._at_levels(network, trial, 0.02))
    assert figures[0].callers == first
