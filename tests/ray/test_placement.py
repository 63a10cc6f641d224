"""A network on two of three replicas: every replica takes its calls, and a lost one is replaced."""

from __future__ import annotations

from headrace.client import Client
from tests.ray.conftest import MODEL, Load, Servers, X, until
from tests.ray.test_failures import names, replace, replica_processes


def holders(client: Client) -> set[str]:
    return set(client.network("two").info.replicas)


def test_calls_go_where_the_network_is(servers: Servers, client: Client) -> None:
    members = servers.ready(3)
    network = client.load_network(MODEL, device="CPU", name="two", config={"REPLICAS": "2"})
    assert set(network.info.replicas) < {member.name for member in members}
    assert len(network.info.replicas) == 2
    for member in members:
        with Client(member.address) as direct:
            found = direct.network("two")
            assert found.infer(X)["scores"].shape == (3, 4)
            assert len(list(found.infer_many([X] * 20))) == 20


def test_no_request_is_lost_when_replicas_of_the_network_are_killed(
    servers: Servers, client: Client
) -> None:
    client.load_network(MODEL, device="CPU", name="two", config={"REPLICAS": "2"})
    before = holders(client)
    with Load(servers, name="two") as load:
        for process in replica_processes()[:2]:  # at least one of them has the network
            live = names(replace(servers, process))
        until(lambda: len(holders(client) & live) == 2, "two replicas have the network")
        load.more(50)
    assert holders(client) != before
    assert load.failed == []
