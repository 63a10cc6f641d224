"""Both clients with several servers, over sockets; the servers are fakes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.client import Client, aio, errors
from headrace.client.balancing import Balancing
from headrace.client.balancing.fleet import Server
from headrace.client.balancing.health import Health
from headrace.wire.errors import ErrorDetails
from tests.support.client_fake import ENDLESS, KINDS, REFUSED, Fake, connected, eventually, running
from tests.support.patience import PATIENCE_SECONDS
from tests.support.ports import held_port

DRAINS = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "drains", reason="SHUTTING_DOWN")
DOWN = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "no device", reason="UNAVAILABLE")
LACKS = ErrorDetails(grpc.StatusCode.NOT_FOUND, "not here", reason="NOT_FOUND", field="network")
X = {"x": np.array([[1.0]], np.float32)}
TURNS = Balancing(policy="round_robin", frozen_seconds=PATIENCE_SECONDS)


@pytest.fixture
def fakes() -> Iterator[list[Fake]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running()) for _ in range(3)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def client_of(kind: str, servers: Any, **options: Any) -> Iterator[Any]:
    targets = [getattr(each, "target", each) for each in servers]
    with connected(kind, targets, **{"balance": TURNS, **options}) as client:
        yield client


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that takes connections and never says a word, as a frozen one. Clients soon lose
    patience with it, and with it alone."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        target = f"127.0.0.1:{listening.getsockname()[1]}"
        make = Server.__init__

        def make_impatient(server: Server, address: str, health: Health) -> None:
            if address == target:
                health = Health(replace(TURNS, frozen_seconds=0.3))
            make(server, address, health)

        monkeypatch.setattr(Server, "__init__", make_impatient)
        yield target


def calls(fakes: list[Fake], method: str) -> list[int]:
    return [len(fake.requests(method)) for fake in fakes]


def test_requests_are_divided(kind: str, fakes: list[Fake]) -> None:
    with client_of(kind, fakes) as client:
        network = client.network("echo")
        for _ in range(9):
            network.infer(X)
        for request in [network.start_async(X) for _ in range(9)]:
            request.result()
    assert calls(fakes, "Infer") == [6, 6, 6]


@pytest.mark.parametrize("refusal", [DRAINS, DOWN, LACKS], ids=["drains", "down", "lacks"])
def test_a_request_that_one_server_refuses_is_answered_by_another(
    kind: str, fakes: list[Fake], refusal: ErrorDetails
) -> None:
    with client_of(kind, fakes) as client:
        network = client.network("echo")
        for fake in fakes[:2]:
            fake.failures.append(refusal)
        assert network.infer(X)["y"][0, 0] == 1.0
        assert network.start_async(X).result()["y"][0, 0] == 1.0


def test_a_server_that_is_not_there_costs_no_request(kind: str, fakes: list[Fake]) -> None:
    with client_of(kind, [f"127.0.0.1:{held_port()}", *fakes[:1]]) as client:
        network = client.network("echo")
        for _ in range(4):
            network.infer(X)
    assert calls(fakes, "Infer") == [4, 0, 0]


def test_a_silent_server_is_left_and_its_requests_are_repeated(
    kind: str, fakes: list[Fake], silent: str
) -> None:
    with client_of(kind, [silent, fakes[0].target]) as client:
        network = client.network("echo")
        requests = [network.start_async(X) for _ in range(8)]
        assert [request.result()["y"][0, 0] for request in requests] == [1.0] * 8
        for _ in range(3):
            network.infer(X)
    assert calls(fakes, "Infer") == [11, 0, 0]


HEDGES = Balancing(policy="round_robin", hedge_after_seconds=0.01, frozen_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("way", ["infer", "start_async"])
def test_a_slow_request_goes_to_a_second_server_by_choice(
    kind: str, fakes: list[Fake], way: str
) -> None:
    slow, quick = fakes[:2]
    with client_of(kind, [slow, quick], balance=HEDGES) as client:
        network = client.network("echo")
        slow.held = True
        while not slow.started.is_set():  # until one begins at the slow server
            sent = getattr(network, way)(X)
            outputs = sent if way == "infer" else sent.result()
            assert outputs["y"][0, 0] == 1.0
        assert eventually(slow.cancelled.is_set)


def test_a_request_with_hedges_can_be_cancelled_and_fails_with_the_last_error(
    kind: str, fakes: list[Fake]
) -> None:
    with client_of(kind, fakes[:2], balance=HEDGES) as client:
        network = client.network("echo")
        request = network.start_async({"x": np.array([[ENDLESS]], np.float32)})
        assert eventually(lambda: not request.wait(0.01) and all(calls(fakes[:2], "Infer")))
        request.cancel()
        with pytest.raises(errors.Cancelled):
            request.result()
        refused = network.start_async({"x": np.array([[REFUSED]], np.float32)})
        with pytest.raises(errors.Error) as caught:
            refused.result()
    assert not isinstance(caught.value, errors.Cancelled)


def test_without_hedges_a_request_goes_to_one_server(kind: str, fakes: list[Fake]) -> None:
    with client_of(kind, fakes[:2]) as client:
        network = client.network("echo")
        request = network.start_async({"x": np.array([[ENDLESS]], np.float32)})
        assert eventually(lambda: not request.wait(0.01) and sum(calls(fakes, "Infer")) == 1)
        request.cancel()
        with pytest.raises(errors.Cancelled):
            request.result()
    assert sum(calls(fakes, "Infer")) == 1


# -- streams --


def results_of(many: Any) -> dict[int, float]:
    return {index: float(outcome["y"][0, 0]) for index, outcome in many}


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"x": np.array([[float(number)]], np.float32)} for number in range(count)]


def test_a_stream_that_breaks_goes_on_elsewhere_and_loses_nothing(
    kind: str, fakes: list[Fake]
) -> None:
    with client_of(kind, fakes) as client:
        network = client.network("echo")
        for fake in fakes[:2]:
            fake.failures.append(DRAINS)
        found = results_of(network.infer_many(numbered(100), in_flight=8))
    assert found == {number: float(number) for number in range(100)}
    assert 1 <= sum(calls(fakes, "InferStream")) <= 3


@pytest.mark.parametrize("refusal", [DRAINS, DOWN, LACKS], ids=["drains", "down", "lacks"])
def test_a_stream_leaves_a_server_that_refuses_single_requests(
    kind: str, fakes: list[Fake], refusal: ErrorDetails
) -> None:
    with client_of(kind, fakes) as client:
        network = client.network("echo")
        for fake in fakes:
            fake.refusals.append(refusal)
        found = results_of(network.infer_many(numbered(50), in_flight=4))
    assert found == {number: float(number) for number in range(50)}


def test_a_stream_leaves_a_silent_server(kind: str, fakes: list[Fake], silent: str) -> None:
    with client_of(kind, [silent, fakes[0].target]) as client:
        network = client.network("echo")
        streams = [network.infer_many(numbered(20), in_flight=4) for _ in range(2)]
        expected = {number: float(number) for number in range(20)}
        assert [results_of(stream) for stream in streams] == [expected] * 2


def test_arrays_may_change_after_a_stream_has_drawn_them(kind: str, fakes: list[Fake]) -> None:
    """Large ones, which are sent without a copy, and are sent again from one."""
    array = np.zeros((1, 20_000), np.float32)

    def inputs() -> Iterator[dict[str, Any]]:
        for number in range(6):
            array[:] = number
            yield {"x": array}

    with client_of(kind, fakes) as client:
        network = client.network("echo")
        for fake in fakes:
            fake.refusals.append(DRAINS)
        found = {
            index: (float(outcome["y"].min()), float(outcome["y"].max()))
            for index, outcome in network.infer_many(inputs(), in_flight=3)
        }
    assert found == {number: (float(number), float(number)) for number in range(6)}


def test_a_stream_gives_up_where_no_server_takes_its_requests(kind: str, fakes: list[Fake]) -> None:
    with client_of(kind, fakes, balance=Balancing(attempts=3)) as client:
        network = client.network("echo")
        for fake in fakes:
            fake.refusals.extend([DOWN] * 20)
        ((_, outcome),) = network.infer_many(numbered(1))
    assert isinstance(outcome, errors.Unavailable)


# -- calls that are about all servers, or about one --


def test_a_load_an_unload_and_settings_are_for_all_servers(kind: str, fakes: list[Fake]) -> None:
    with client_of(kind, fakes) as client:
        network = client.load_network(b"\x08\x08", name="echo")
        network.set_config({"PERF_COUNT": "YES"})
        client.set_config("CPU", {"NUM_STREAMS": "1"})
        network.set_traffic({"1": 10})
        network.unload()
    for method in ("LoadNetwork", "UnloadNetwork", "SetTraffic"):
        assert calls(fakes, method) == [1, 1, 1], method
    assert calls(fakes, "SetConfig") == [2, 2, 2]


def test_a_large_model_is_uploaded_to_each_server(kind: str, fakes: list[Fake]) -> None:
    with client_of(kind, fakes) as client:
        client.load_network(bytes(600_000), name="large")
        client.query_network(bytes(600_000))
    assert [len(fake.uploaded) for fake in fakes] == [600_000] * 3
    assert sorted(calls(fakes, "UploadModel")) == [1, 1, 2]
    assert sum(calls(fakes, "QueryNetwork")) == 1


def test_a_load_that_fails_somewhere_says_where_and_why(kind: str, fakes: list[Fake]) -> None:
    fakes[1].failures.append(ErrorDetails(grpc.StatusCode.ALREADY_EXISTS, "it is loaded"))
    with client_of(kind, fakes) as client, pytest.raises(errors.AlreadyExists) as caught:
        client.load_network(b"\x08\x08", name="echo")
    message = str(caught.value)
    assert f"done on {fakes[0].target}, {fakes[2].target}" in message
    assert f"{fakes[1].target}: it is loaded" in message
    assert caught.value.details.metadata == {"failed": fakes[1].target}


ABOUT_ONE = {
    "devices": lambda client: client.devices(),
    "networks": lambda client: client.networks(),
    "repository": lambda client: client.repository(),
    "status": lambda client: client.status(),
    "get_metric": lambda client: client.get_metric("CPU", "FULL_DEVICE_NAME"),
    "get_config": lambda client: client.get_config("CPU", "NUM_STREAMS"),
    "network.get_metric": lambda client: client.network("echo").get_metric("NETWORK_NAME"),
    "network.get_config": lambda client: client.network("echo").get_config("PERF_COUNT"),
    "performance_counts": lambda client: client.network("echo").performance_counts(),
}


@pytest.mark.parametrize("call", ABOUT_ONE.values(), ids=ABOUT_ONE)
def test_a_call_about_one_server_is_refused_with_the_remedy(
    kind: str, fakes: list[Fake], call: Any
) -> None:
    with client_of(kind, fakes) as client, pytest.raises(errors.FailedPrecondition) as caught:
        call(client)
    assert caught.value.details.reason == "SEVERAL_SERVERS"
    assert f"client.server({fakes[0].target!r})" in str(caught.value)


def test_one_of_the_servers_can_be_asked(fakes: list[Fake]) -> None:
    with Client([fake.target for fake in fakes]) as client:
        assert client.servers == [fake.target for fake in fakes]  # type: ignore[attr-defined]
        one = client.server(fakes[1].target)  # type: ignore[attr-defined]
        assert [device.name for device in one.devices()]
        assert calls(fakes, "ListDevices") == [0, 1, 0]
        with pytest.raises(errors.InvalidArgument, match="not a server of this client"):
            client.server("localhost:1")  # type: ignore[attr-defined]


def test_a_session_stays_with_one_server(kind: str, fakes: list[Fake]) -> None:
    with client_of(kind, fakes) as client:
        session = client.network("stateful").session()
        for _ in range(6):
            session.infer(X)
        session.end()
    assert sorted(calls(fakes, "Infer")) == [0, 0, 7]


# -- the client itself --


def test_a_name_is_looked_up(kind: str, fakes: list[Fake]) -> None:
    port = fakes[0].target.rpartition(":")[2]
    with connected(kind, f"dns:///localhost:{port}", balance=True) as client:
        assert client.network("echo").infer(X)["y"][0, 0] == 1.0
        assert f"127.0.0.1:{port}" in client.servers


def test_a_name_that_dns_does_not_know_is_unavailable(kind: str) -> None:
    target = "dns:///nobody.invalid:9000"
    with connected(kind, target, balance=True) as client, pytest.raises(errors.Unavailable) as why:
        client.network("echo")
    assert "nobody.invalid" in str(why.value)


def test_a_closed_client_says_so(fakes: list[Fake]) -> None:
    with client_of("sync", fakes) as client:
        network = client.network("echo")
    for call in (network.infer, network.start_async, lambda _: client.devices()):
        with pytest.raises(errors.FailedPrecondition):
            call(X)


def test_what_is_in_flight_at_a_close_is_cancelled(fakes: list[Fake]) -> None:
    with Client([fake.target for fake in fakes]) as client:
        network = client.network("echo")
        request = network.start_async({"x": np.array([[ENDLESS]], np.float32)})
        assert eventually(lambda: any(fake.started.is_set() for fake in fakes))
    with pytest.raises(errors.Cancelled):
        request.result()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"shared_memory": True}, "shared_memory"),
        ({"token": "secret"}, "token"),
        ({"balance": "round_robin"}, "balance"),
    ],
    ids=["shared memory", "token", "policy alone"],
)
def test_what_does_not_go_with_several_servers_is_refused(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        Client(["localhost:9000", "elsewhere:9000"], **options)
    assert caught.value.details.field == field


def test_one_address_makes_the_plain_client(fakes: list[Fake]) -> None:
    async def plain() -> type:
        async with aio.Client(fakes[0].target) as client:
            return type(client)

    with Client(fakes[0].target) as client:
        assert type(client) is Client
    assert asyncio.run(plain()) is aio.Client
    balanced = Client([fakes[0].target])
    assert isinstance(balanced, Client)
    assert type(balanced) is not Client
    balanced.close()


def test_a_client_that_is_dropped_ends_its_thread(fakes: list[Fake]) -> None:
    client = Client([fake.target for fake in fakes])
    client.network("echo")
    names = [thread for thread in threading.enumerate() if thread.name == "headrace-balancing"]
    assert names
    del client
    assert eventually(lambda: not any(thread.is_alive() for thread in names))
