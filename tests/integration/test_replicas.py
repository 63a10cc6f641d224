"""Three servers that share one model repository, and clients that balance over them.

What a client may see while the folder changes is in docs/use/balancing.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.client import Client, errors
from headrace.client.balancing import Balancing
from headrace.client.cli.app import make_app
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.integration.harness import Server, infer_request, until
from tests.integration.test_manual import small_model
from tests.integration.test_repository import Folder, X, adds
from tests.reload.test_reload import Load
from tests.support.manual import blocks

TURNS = Balancing(policy="round_robin")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def servers(folder: Folder) -> Iterator[list[Server]]:
    options = ("--model-repository", str(folder.root), "--repository-poll-seconds", "0.1")
    with ExitStack() as stack:
        yield [stack.enter_context(Server("--devices", "CPU", *options)) for _ in range(3)]


@pytest.fixture
def client(servers: list[Server]) -> Iterator[Client]:
    with Client([server.address for server in servers], balance=TURNS) as balanced:
        yield balanced


def versions(server: Server, name: str) -> list[str]:
    """The versions of a network that one server has ready."""
    listed = server.stub.ListNetworks(pb.ListNetworksRequest(), timeout=60).networks
    return [each.version for each in listed if each.name == name and each.state == pb.READY]


def put(folder: Folder, name: str, version: int) -> None:
    """Adds a version in one step, so that the first look finds it whole."""
    (folder.root / name).mkdir(exist_ok=True)
    folder.rename_into_place(name, version, adds(version))


def test_a_network_that_is_added_is_there_from_its_first_reply_on(
    client: Client, servers: list[Server], folder: Folder
) -> None:
    with pytest.raises(errors.NotFound):
        client.network("added")
    put(folder, "added", 1)
    found: list[Any] = []

    def is_there() -> bool:
        try:
            network = client.network("added")
        except errors.NotFound:
            return False
        found.append(network)
        return network.info.state == "READY"

    until(is_there)
    for _ in range(30):  # whether the other servers have it already or not
        assert found[-1].infer({"x": X})["y"].tolist() == [1.0, 1.0]
    until(lambda: all(versions(server, "added") == ["1"] for server in servers))


def test_while_a_network_changes_replies_are_of_the_old_or_the_new_version(
    client: Client, servers: list[Server], folder: Folder
) -> None:
    put(folder, "changed", 1)
    until(lambda: all(versions(server, "changed") == ["1"] for server in servers))
    network = client.network("changed")
    seen: list[float] = []

    def call() -> int:
        seen.append(float(network.infer({"x": X})["y"][0]))
        return 1

    load = Load()
    for _ in range(2):
        load.add("unary", call)
    load.start()
    try:
        until(lambda: seen)
        put(folder, "changed", 2)
        until(lambda: all(versions(server, "changed") == ["2"] for server in servers))
    finally:
        load.stop()
    assert load.failed == []
    assert set(seen) <= {1.0, 2.0}
    assert {float(network.infer({"x": X})["y"][0]) for _ in range(6)} == {2.0}


def test_a_network_that_is_removed_is_served_until_the_last_server_has_unloaded_it(
    client: Client, servers: list[Server], folder: Folder
) -> None:
    put(folder, "removed", 1)
    until(lambda: all(versions(server, "removed") == ["1"] for server in servers))
    network = client.network("removed")
    shutil.rmtree(folder.root / "removed")

    def is_gone() -> bool:
        held = any(versions(server, "removed") for server in servers)
        try:
            network.infer({"x": X})
        except errors.NotFound:
            # Unloading takes a moment, so what was held before the call may be gone in it.
            return not any(versions(server, "removed") for server in servers)
        assert held  # a network that nobody has cannot answer
        return False

    until(is_gone)
    for _ in range(6):
        with pytest.raises(errors.NotFound):
            network.infer({"x": X})


def test_a_network_that_one_server_alone_has_is_found_by_every_call(
    client: Client, servers: list[Server]
) -> None:
    client.server(servers[1].address).load_network(adds(5), name="lonely")  # type: ignore[attr-defined]
    network = client.network("lonely")
    for _ in range(9):
        assert network.infer({"x": X})["y"][0] == 5.0
    outcomes = [outcome for _, outcome in network.infer_many([{"x": X}] * 20)]
    assert [float(outcome["y"][0]) for outcome in outcomes] == [5.0] * 20  # type: ignore[index]


def test_what_a_client_loads_is_loaded_on_all_servers(
    client: Client, servers: list[Server]
) -> None:
    network = client.load_network(adds(3), name="everywhere")
    assert [versions(server, "everywhere") for server in servers] == [["1"]] * 3
    with pytest.raises(errors.AlreadyExists, match="failed on 3 of 3 servers"):
        client.load_network(adds(3), name="everywhere")
    network.unload()
    assert [versions(server, "everywhere") for server in servers] == [[]] * 3


def test_the_command_line_takes_several_servers(servers: list[Server], tmp_path: Path) -> None:
    target = ",".join(server.address for server in servers)
    model, inputs = tmp_path / "four.onnx", tmp_path / "x.npy"
    model.write_bytes(adds(4))
    np.save(inputs, X)

    def run(*arguments: str) -> Any:
        command = [*arguments, "--server", target]
        return CliRunner().invoke(make_app(command), command)

    assert run("load", str(model), "--device", "CPU", "--name", "four").exit_code == 0
    assert [versions(server, "four") for server in servers] == [["1"]] * 3
    inferred = run("infer", "four", "--input", f"x={inputs}")
    assert inferred.exit_code == 0, inferred.output
    turns = run("infer", "four", "--input", f"x={inputs}", "--balance", "round_robin")
    assert turns.exit_code == 0, turns.output
    refused = run("devices")
    assert refused.exit_code == 1
    assert "name one with --server" in refused.stderr
    assert run("unload", "four").exit_code == 0
    assert [versions(server, "four") for server in servers] == [[]] * 3


def test_the_command_line_shares_calls_among_the_servers_of_a_name(
    servers: list[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, port = tmp_path / "x.npy", servers[0].address.rpartition(":")[2]
    np.save(inputs, X)
    with Client(servers[0].address) as client:
        client.load_network(adds(7), name="seven")
    monkeypatch.setenv("HEADRACE_SERVER", f"dns:///localhost:{port}")
    monkeypatch.setenv("HEADRACE_BALANCE", "least_loaded")

    def run(*command: str) -> Any:
        return CliRunner().invoke(make_app(command), command)

    inferred = run("infer", "seven", "--input", f"x={inputs}")
    assert inferred.exit_code == 0, inferred.output
    refused = run("networks")
    assert refused.exit_code == 1
    assert "is about one server, and this client has all servers of a name" in refused.stderr
    assert run("networks", "--server", servers[0].address).exit_code == 0  # nothing to share
    wrong = run("networks", "--balance", "best")
    assert wrong.exit_code == 2
    assert "least_loaded" in wrong.output


def test_the_manuals_program_runs(
    servers: list[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = blocks("docs/use/balancing.md", "python")
    for name, server in zip("abc", servers, strict=True):
        program = program.replace(f"{name}:9000", server.address)
    (tmp_path / "model.onnx").write_bytes(small_model().SerializeToString())
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "balancing.md", "exec"), {"__name__": "__main__"})


def test_grpcs_own_balancing_works_with_the_manuals_service_configuration(
    client: Client, servers: list[Server]
) -> None:
    (configuration,) = blocks("docs/use/balancing.md", "json")
    client.load_network(adds(6), name="by_grpc")
    target = "ipv4:" + ",".join(server.address for server in servers)
    with grpc.insecure_channel(target, [("grpc.service_config", configuration)]) as channel:
        stub: Any = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
        request = infer_request("by_grpc", {"x": X})

        def all_served() -> bool:
            stub.Infer(request, timeout=60, wait_for_ready=True)
            name = "headrace_network_requests_total"
            return all(server.total(name, network="by_grpc") for server in servers)

        until(all_served)


def test_a_server_that_stops_under_load_fails_no_request(
    client: Client, servers: list[Server]
) -> None:
    """The last test of this module, because one server is gone then."""
    network = client.load_network(adds(1), name="steady")
    load = Load()

    def unary() -> int:
        network.infer({"x": X})
        return 1

    def streamed() -> int:
        for _, outcome in network.infer_many([{"x": X}] * 50, in_flight=8):
            if isinstance(outcome, errors.Error):
                raise outcome
        return 50

    for call in (unary, unary, streamed):
        load.add(call.__name__, call)
    load.start()
    try:
        until(lambda: len(load.answered) == 2)
        assert servers[0].stop() == 0, servers[0].log()
        before = load.answered.copy()
        until(lambda: all(load.answered[kind] > before[kind] for kind in before))
    finally:
        load.stop()
    assert load.failed == []
