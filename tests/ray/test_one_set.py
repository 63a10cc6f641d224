"""What any client changes holds for all replicas, and for those of tomorrow."""

from __future__ import annotations

import pytest

from headrace.client import Client, errors
from headrace.client.sync import Network
from tests.ray.conftest import MODEL, Servers, X


def directly(servers: Servers) -> list[Client]:
    return [Client(member.address) for member in servers.ready(3)]


def test_a_loaded_network_is_on_every_replica_when_the_reply_comes(
    servers: Servers, client: Client
) -> None:
    replicas = directly(servers)
    for round_ in range(5):
        network = client.load_network(MODEL, device="CPU", name=f"net{round_}")
        for each in replicas:
            assert each.network(f"net{round_}").infer(X)["scores"].shape == (3, 4)
        network.unload()
        for each in replicas:
            with pytest.raises(errors.NotFound):
                each.network(f"net{round_}").infer(X)
    for each in replicas:
        each.close()


def test_configurations_hold_on_every_replica(
    servers: Servers, client: Client, mlp: Network
) -> None:
    mlp.set_config({"EXECUTION_TIMEOUT": "17"})
    client.set_config("CPU", {"PERF_COUNT": "YES"})
    for each in directly(servers):
        with each:
            assert each.network("mlp").get_config("EXECUTION_TIMEOUT") == 17.0
            assert each.get_config("CPU", "PERF_COUNT") is True
    client.set_config("CPU", {"PERF_COUNT": "NO"})


def test_one_of_two_loads_of_a_name_wins(servers: Servers, client: Client) -> None:
    first, second, third = directly(servers)
    first.load_network(MODEL, device="CPU", name="twice")
    with pytest.raises(errors.AlreadyExists):
        second.load_network(MODEL, device="CPU", name="twice")
    second.load_network(MODEL, device="TEMPLATE", name="twice", replace=True)
    for each in (first, second, third):
        assert each.network("twice").info.device == "TEMPLATE"
        each.close()


def test_a_network_with_a_number_of_replicas_answers_everywhere(
    servers: Servers, client: Client
) -> None:
    config = {"REPLICAS": "1"}
    for name in ("one", "two", "three"):
        client.load_network(MODEL, device="CPU", name=name, config=config)
    homes = set()
    for each in directly(servers):
        with each:
            assert {one.name for one in each.networks()} >= {"one", "two", "three"}
            for name in ("one", "two", "three"):
                network = each.network(name)
                assert network.infer(X)["scores"].shape == (3, 4)
                for _, outputs in network.infer_many([X] * 10):
                    assert not isinstance(outputs, errors.Error)
                homes |= set(network.info.replicas)
    assert homes == {member.name for member in servers.ready(3)}
