"""What a client's handle does when its network is replaced by another one, fails or is repaired."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.client import Client, aio, errors
from headrace.client.plans import network_plans
from headrace.client.sync import Network
from headrace.testing.case import parse
from tests.integration.harness import BASIC, Server, until

NAMED_X = parse("m (float[1,2] x) => (float[1,2] y) { y = Neg(x) }").SerializeToString()
WIDER = parse("m (float[n,2] x) => (float[n,2] y) { y = Neg(x) }").SerializeToString()
NAMED_A = parse("m (float[1,2] a) => (float[1,2] b) { b = Neg(a) }").SerializeToString()
DOUBLE = parse("m (double[1,2] x) => (double[1,2] y) { y = Neg(x) }").SerializeToString()
ONE = np.ones((1, 2), np.float32)
# Each replacement, and a request that fits it and not what it replaces.
OTHERS = [
    pytest.param(WIDER, {"x": np.ones((3, 2), np.float32)}, id="wider"),
    pytest.param(NAMED_A, {"a": ONE}, id="other names"),
    pytest.param(DOUBLE, {"x": [[1, 1]]}, id="another type, which the server alone refuses"),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    options = ("--model-repository", str(repository), "--repository-poll-seconds", "0.1")
    with Server(*BASIC, *options) as running:
        yield running


@pytest.fixture(params=["one server", "balanced"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Client]:
    balanced = request.param == "balanced"
    with Client([server.address] if balanced else server.address, balance=balanced) as client:
        yield client


def right(outputs: Any) -> bool:
    (value,) = outputs.values()
    return bool(np.all(value == -1))


def handle(client: Client) -> Network:
    client.load_network(NAMED_X, name="m", replace=True)
    network = client.network("m")
    network.infer({"x": ONE})
    return network


@pytest.mark.parametrize(("model", "inputs"), OTHERS)
def test_a_handle_follows_its_network_to_other_inputs(
    client: Client, model: bytes, inputs: dict[str, Any]
) -> None:
    network = handle(client)
    client.load_network(model, name="m", replace=True)
    assert right(network.infer(inputs))
    assert network.inputs.names == tuple(inputs)


@pytest.mark.parametrize(("model", "inputs"), OTHERS)
def test_requests_that_are_started_or_streamed_follow_it_too(
    client: Client, model: bytes, inputs: dict[str, Any]
) -> None:
    network = handle(client)
    client.load_network(model, name="m", replace=True)

    def works() -> bool:
        try:
            return right(network.start_async(inputs).result())
        except errors.InvalidArgument:  # the server refused it, and the next one fits
            return False

    until(works, "a request was to fit")
    client.load_network(NAMED_X, name="m", replace=True)

    def streams() -> bool:
        ((_, outputs),) = network.infer_many([{"x": ONE}])
        return not isinstance(outputs, errors.Error) and right(outputs)

    until(streams, "a streamed request was to fit")


@pytest.mark.parametrize(("model", "inputs"), OTHERS)
def test_a_handle_of_the_asyncio_client_follows_its_network(
    server: Server, model: bytes, inputs: dict[str, Any]
) -> None:
    async def run() -> None:
        async with aio.Client(server.address) as client:
            await client.load_network(NAMED_X, name="m", replace=True)
            network = await client.network("m")
            await client.load_network(model, name="m", replace=True)
            assert right(await network.infer(inputs))
            await client.load_network(NAMED_X, name="m", replace=True)
            for _ in range(1000):
                try:
                    assert right(await network.start_async({"x": ONE}).result())
                    return
                except errors.InvalidArgument:
                    await asyncio.sleep(0.01)
            raise AssertionError("no request fits")

    asyncio.run(run())


def test_a_failed_network_says_why_and_its_handle_works_when_it_is_repaired(
    client: Client, repository: Path
) -> None:
    def state() -> str:
        return next((each.state for each in entries() if each.name == name), "")

    def entries() -> list[Any]:
        balanced = hasattr(client, "servers")
        return (client.a_server() if balanced else client).repository()  # type: ignore[attr-defined]

    name = type(client).__name__
    model = repository / name / "model.onnx"
    model.parent.mkdir()
    model.write_bytes(b"broken")
    until(lambda: state() == "FAILED", "it was to fail")
    network = client.network(name)
    for ask in (
        lambda: network.infer({"x": ONE}),
        lambda: network.start_async({"x": ONE}),
        lambda: next(network.infer_many([{"x": ONE}])),
        network.session,
    ):
        with pytest.raises(errors.FailedPrecondition, match=rf"'{name}' failed to load: .*ONNX"):
            ask()
    new = repository / ".new"
    new.write_bytes(NAMED_X)
    new.rename(model)
    until(lambda: state() == "READY", "it was to be loaded")

    def works() -> bool:
        try:
            return right(network.infer({"x": ONE}))
        except errors.FailedPrecondition:
            return False

    until(works, "the old handle was to work")


def test_a_handle_looks_its_network_up_once_a_second_at_most(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(server.address) as client:
        network = handle(client)
        asked: list[int] = []
        renew = network_plans.LoadedNetwork.renew

        def counted(self: Any, timeout: float) -> Any:
            asked.append(threading.get_ident())
            return renew(self, timeout)

        monkeypatch.setattr(network_plans.LoadedNetwork, "renew", counted)
        monkeypatch.setattr(network_plans, "_LOOK_SECONDS", 3600)
        for _ in range(50):
            with pytest.raises(errors.InvalidArgument, match="no input 'z'"):
                network.infer({"z": ONE})
        assert len(asked) == 1
