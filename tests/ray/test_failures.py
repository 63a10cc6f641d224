"""A replica and a node are killed under load, and a new version is rolled out under load."""

from __future__ import annotations

import psutil
import pytest

from headrace.client import Client
from headrace.client.sync import Network
from headrace.cluster.members import ReplicaAddress
from tests.ray.conftest import SETTINGS, Load, Servers, X, until


def replica_processes() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any("ServeReplica:headrace" in part for part in process.info["cmdline"] or ())
    ]


def names(members: list[ReplicaAddress]) -> set[str]:
    return {member.name for member in members}


def replace(servers: Servers, process: psutil.Process) -> list[ReplicaAddress]:
    """Kills a replica, and waits until another one has its place."""
    before = names(servers.ready(3))
    process.kill()
    # The keeper counts the dead replica for some seconds.
    until(lambda: names(servers.ready(3)) != before, "a replacement")
    return servers.ready(3)


def test_no_request_is_lost_when_a_replica_is_killed(servers: Servers, mlp: Network) -> None:
    before = names(servers.ready(3))
    with Load(servers) as load:
        members = replace(servers, replica_processes()[0])
        load.more(200)
    assert load.failed == []
    assert len(names(members) - before) == 1
    check_each(members)


def check_each(members: list[ReplicaAddress]) -> None:
    """Every replica has the network."""
    for member in members:
        with Client(member.address) as direct:
            assert direct.network("mlp").infer(X)["scores"].shape == (3, 4)


def test_no_request_is_lost_when_a_node_is_killed(servers: Servers, mlp: Network) -> None:
    if servers.nodes is None:
        pytest.skip("the nodes of a cluster that is there already are not killed")
    before = {member.node for member in servers.ready(3)}
    assert len(before) == 3
    spare = servers.nodes.add()
    lost = next(iter(servers.nodes.ray.worker_nodes - {spare}))
    with Load(servers) as load:
        servers.nodes.kill(lost)
        load.more(200)
        until(lambda: lost.node_id[:8] not in {each.node for each in servers.ready(3)}, "a move")
        members = servers.ready(3)
        load.more(200)
    assert load.failed == []
    assert {member.node for member in members} == before - {lost.node_id[:8]} | {spare.node_id[:8]}
    check_each(members)


def test_no_request_fails_while_a_new_version_is_rolled_out(servers: Servers, mlp: Network) -> None:
    before = names(servers.ready(3))
    with Load(servers) as load:
        servers.deploy({**SETTINGS, "max_networks": "99"})
        members = servers.ready(3)
        load.more(100)
    assert load.failed == []
    assert not before & names(members)
