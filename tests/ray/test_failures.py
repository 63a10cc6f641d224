"""A replica and a node are killed under load, and a new version is rolled out under load."""

from __future__ import annotations

import psutil
import pytest

from headrace.client import Client
from headrace.client.sync import Network
from tests.ray.conftest import SETTINGS, Load, Servers, X, node_options


def replica_processes() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any("ServeReplica:headrace" in part for part in process.info["cmdline"] or ())
    ]


def test_no_request_is_lost_when_a_replica_is_killed(servers: Servers, mlp: Network) -> None:
    before = {member.name for member in servers.ready(3)}
    with Load(servers) as load:
        replica_processes()[0].kill()
        load.more(200)
        members = servers.ready(3)
        load.more(200)
    assert load.failed == []
    assert len({member.name for member in members} - before) == 1
    for member in members:
        with Client(member.address) as direct:
            assert direct.network("mlp").infer(X)["scores"].shape == (3, 4)


def test_no_request_is_lost_when_a_node_is_killed(servers: Servers, mlp: Network) -> None:
    if servers.ray is None:
        pytest.skip("the nodes of a cluster that is there already are not killed")
    spare = servers.ray.add_node(**node_options())
    nodes = {member.node for member in servers.ready(3)}
    head = servers.ray.head_node.node_id
    lost = next(
        each
        for each in servers.ray.worker_nodes
        if each.node_id[:8] in nodes and each.node_id != head
    )
    with Load(servers) as load:
        servers.ray.remove_node(lost, allow_graceful=False)
        load.more(200)
        members = servers.ready(3)
        load.more(200)
    assert load.failed == []
    assert lost.node_id[:8] not in {member.node for member in members}
    assert spare is not None


def test_no_request_fails_while_a_new_version_is_rolled_out(servers: Servers, mlp: Network) -> None:
    before = {member.name for member in servers.ready(3)}
    with Load(servers) as load:
        servers.deploy({**SETTINGS, "max_networks": "99"})
        members = servers.ready(3)
        load.more(100)
    assert load.failed == []
    assert not before & {member.name for member in members}
