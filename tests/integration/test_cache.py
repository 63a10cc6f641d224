"""The cache of compiled networks as clients, and those who run servers, see it."""

from __future__ import annotations

import fcntl
import resource
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest

from headrace.testing import networks
from headrace.testing.compare import assert_same_outputs
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.parameters import decode_parameter
from tests.integration.harness import CALL_SECONDS, Server, changes, details_of, until

_CONFIG = """
devices = "STORED,GATED,LARGE,APART,TEMPLATE"
[plugins.STORED]
factory = "tests.support.exporting_device:create_plugin"
[plugins.GATED]
factory = "tests.support.exporting_device:create_gated"
[plugins.LARGE]
factory = "tests.support.exporting_device:create_large"
[plugins.APART]
factory = "tests.support.exporting_device:create_plugin"
config = {ISOLATION = "PROCESS"}
"""
_VIRTUAL = ["HETERO:OPENVINO,CPU", "MULTI:OPENVINO,CPU", "AUTO:OPENVINO"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the servers of this module share."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "headrace.toml").write_text(_CONFIG, "utf-8")
    (folder / "gate").touch()
    return folder


def start(folder: Path, *options: str, key: str = "key") -> Server:
    config, cache = str(folder / "headrace.toml"), str(folder / "cache")
    shared = ("--config", config, "--cache-dir", cache, "--mac-key-file", str(folder / key))
    return Server(*shared, *options, environment={"TEST_GATE": str(folder)})


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with start(folder) as server:
        yield server
        assert server.stop() == 0, server.log()


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Iterator[Server]:
    """A server that shares the folder and not the key."""
    with start(folder, "--devices", "STORED,LARGE", key="another-key") as server:
        yield server
        assert server.stop() == 0, server.log()


def load(
    server: Server, device: str, name: str, config: Mapping[str, str] | None = None
) -> pb.NetworkInfo:
    return server.load(networks.mlp(), device, name, config)


def entries(folder: Path) -> set[Path]:
    """The entries of compiled networks. What is known of models lies in another folder."""
    found = (folder / "cache").glob("*/*.compiled")
    return {each for each in found if each.parent.name != "models"}


def network_metric(server: Server, network: str, name: str) -> Any:
    request = pb.GetMetricRequest(target=pb.Target(network=network), name=name)
    return decode_parameter(server.stub.GetMetric(request, timeout=CALL_SECONDS).value)


def test_the_second_load_comes_from_the_cache_and_everybody_is_told(
    server: Server, folder: Path
) -> None:
    first, second = load(server, "STORED", "first"), load(server, "STORED", "second")
    assert (first.from_cache, second.from_cache) == (False, True)
    assert network_metric(server, "first", "LOADED_FROM_CACHE") is False
    assert network_metric(server, "second", "LOADED_FROM_CACHE") is True
    assert server.metric("COMPILED", "STORED") == 1
    assert server.total("headrace_cache_misses_total", device="STORED") == 1
    assert server.total("headrace_cache_hits_total", device="STORED") == 1
    assert server.total("headrace_cache_bytes") > 0
    assert len(entries(folder)) == 1
    server.unload("first", "second")


def test_a_client_names_a_folder_inside_it_or_turns_it_off(server: Server, folder: Path) -> None:
    before = entries(folder)
    load(server, "STORED", "off", {"CACHE_DIR": ""})
    assert entries(folder) == before
    load(server, "STORED", "own", {"CACHE_DIR": "team-a"})
    (new,) = entries(folder) - before
    assert new.parent == folder / "cache" / "team-a"
    server.unload("off", "own")


@pytest.mark.parametrize("name", ["/tmp/elsewhere", "..", "../up", "a/b", "a\\b", ".hidden"])
def test_a_client_cannot_lead_it_elsewhere(server: Server, folder: Path, name: str) -> None:
    before = entries(folder)
    with pytest.raises(grpc.RpcError) as caught:
        load(server, "STORED", "elsewhere", {"CACHE_DIR": name})
    details = details_of(caught.value)
    assert details.code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.field == "config['CACHE_DIR']"
    assert entries(folder) == before


def test_a_device_that_exports_nothing_is_passed_by(server: Server, folder: Path) -> None:
    before = entries(folder)
    info = load(server, "TEMPLATE", "plain")
    assert not changes(info)
    asked = load(server, "TEMPLATE", "asked", {"CACHE_DIR": "team-a"})
    assert changes(asked) == ["not cached: TEMPLATE exports nothing that would load faster"]
    assert server.total("headrace_cache_skipped_total", device="TEMPLATE") == 2
    assert entries(folder) == before
    server.unload("plain", "asked")


def test_a_device_in_a_process_of_its_own_is_cached_by_the_server(server: Server) -> None:
    infos = [load(server, "APART", name) for name in ("one", "two")]
    assert [info.from_cache for info in infos] == [False, True]
    assert server.metric("COMPILED", "APART") == 1
    server.unload("one", "two")


def test_what_somebody_else_signed_is_refused_and_replaced(
    server: Server, stranger: Server, folder: Path
) -> None:
    before = entries(folder)
    load(server, "STORED", "victim", {"CACHE_DIR": "team-b"})
    (entry,) = entries(folder) - before
    refused = load(stranger, "STORED", "theirs", {"CACHE_DIR": "team-b"})
    assert not refused.from_cache, "nor does it take what we have signed"
    assert "cache's entry was not used" in refused.notes[0]
    assert stranger.total("headrace_cache_refused_total", device="STORED") == 1
    compiled = server.metric("COMPILED", "STORED")
    info = load(server, "STORED", "again", {"CACHE_DIR": "team-b"})  # which they have replaced
    assert not info.from_cache
    assert server.metric("COMPILED", "STORED") == compiled + 1
    assert server.total("headrace_cache_refused_total", device="STORED") == 1
    assert entry.name.removesuffix(".compiled") in server.log()
    assert load(server, "STORED", "third", {"CACHE_DIR": "team-b"}).from_cache
    server.unload("victim", "again", "third")
    stranger.unload("theirs")


def test_two_servers_load_the_same_network_at_once(server: Server, folder: Path) -> None:
    with start(folder, "--devices", "GATED") as other:
        message = networks.mlp().model.SerializeToString()
        request = pb.LoadNetworkRequest(
            name="both", model=pb.ModelSource(data=message), device="GATED"
        )
        before = entries(folder)
        with (folder / "gate").open() as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            calls = [
                each.stub.LoadNetwork.future(request, timeout=CALL_SECONDS)
                for each in (server, other)
            ]
            until(lambda: len(list(folder.glob("compiles-*"))) == 2, "both compile")
        assert [call.result().from_cache for call in calls] == [False, False]
        assert len(entries(folder) - before) == 1
        for each in (server, other):
            each.unload("both")
            assert load(each, "GATED", "later").from_cache
            each.unload("later")
        assert other.stop() == 0


def test_a_full_disk_costs_a_note_and_a_warning(stranger: Server, folder: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(stranger.process.pid, resource.RLIMIT_FSIZE, (2**17, most))
    before, case = entries(folder), networks.mlp()
    info = load(stranger, "LARGE", "large")
    assert changes(info) == ["not cached: the server could not keep it, its log says why"]
    assert stranger.infer("large", case.inputs).keys() == case.expected().keys()
    assert stranger.total("headrace_cache_write_failures_total", device="LARGE") == 1
    assert entries(folder) == before
    assert list((folder / "cache").glob("*/.*")) == [], "nothing half written"
    resource.prlimit(stranger.process.pid, resource.RLIMIT_FSIZE, (most, most))
    load(stranger, "LARGE", "again")
    assert len(entries(folder) - before) == 1
    stranger.unload("large", "again")


def test_a_server_that_was_killed_has_its_networks_from_the_cache_again(
    folder: Path, tmp_path: Path
) -> None:
    options = [
        "--config",
        str(folder / "headrace.toml"),
        "--devices",
        "STORED",
        "--cache-dir",
        str(tmp_path / "cache"),
        "--state-dir",
        str(tmp_path / "state"),
    ]
    environment = {"TEST_GATE": str(folder)}
    with Server(*options, environment=environment) as server:
        assert not load(server, "STORED", "kept").from_cache
        server.kill()
    with Server(*options, environment=environment) as server:
        reply = server.stub.GetNetwork(pb.GetNetworkRequest(name="kept"), timeout=CALL_SECONDS)
        assert reply.info.from_cache
        assert server.metric("COMPILED", "STORED") == 0
        assert server.stop() == 0, server.log()


def test_without_a_key_that_stays_the_cache_warns_and_serves_until_the_end(
    folder: Path, tmp_path: Path
) -> None:
    options = ["--config", str(folder / "headrace.toml"), "--devices", "STORED"]
    with Server(*options, "--cache-dir", str(tmp_path / "cache")) as server:
        assert "set --state-dir or --mac-key-file" in server.log()
        found = [load(server, "STORED", name).from_cache for name in ("one", "two")]
        assert found == [False, True]
        assert server.stop() == 0, server.log()


def test_virtual_devices_have_their_networks_from_the_cache(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    case = networks.typed(np.float32, "float")  # OPENVINO exports fixed sizes
    options = [
        "--devices",
        "OPENVINO,CPU,HETERO,MULTI,AUTO",
        "--cache-dir",
        str(tmp_path / "cache"),
        "--state-dir",
        str(tmp_path / "state"),
    ]
    with Server(*options) as server:
        expected = case.expected()
        for device in ("OPENVINO", *_VIRTUAL):
            config = {"CACHE_DIR": device.partition(":")[0]}
            found = [server.load(case, device, name, config) for name in ("one", "two")]
            assert [info.from_cache for info in found] == [False, True], (device, server.log())
            assert_same_outputs(server.infer("two", case.inputs), expected, 1e-4)
            server.unload("one", "two")
        assert server.total("headrace_cache_refused_total") == 0
        assert server.stop() == 0, server.log()


@pytest.mark.parametrize(
    "apart",
    [
        pytest.param((), id="together"),
        pytest.param(("--isolate-devices",), id="isolated", marks=pytest.mark.long),
    ],
)
def test_networks_on_cpu_come_from_the_cache_after_a_restart(
    tmp_path: Path, apart: tuple[str, ...]
) -> None:
    """A repository's, also with weights beside the model, and a client's. They say, answer and
    refuse the same."""
    case, mapped = networks.mlp(), networks.image()
    offered = {
        "chosen": (networks.transformer(), "AUTO:CPU"),
        "joined": (case, "HETERO:[BATCH:CPU]"),
        "parted": (mapped, "HETERO:CPU"),
        "plain": (case, "CPU"),
        "warm": (mapped, "CPU"),
    }
    for name, (given, device) in offered.items():
        folder = tmp_path / "repository" / name
        folder.mkdir(parents=True)
        onnx.save(
            onnx.ModelProto.FromString(given.model.SerializeToString()),
            folder / "model.onnx",
            save_as_external_data=name == "warm",
            location="weights",
            size_threshold=0,
        )
        (folder / "network.toml").write_text(f'device = "{device}"\n[warmup]\ncount = 1\n')
    options = (
        "--devices=CPU,HETERO,AUTO,BATCH",
        f"--model-repository={tmp_path / 'repository'}",
        f"--cache-dir={tmp_path / 'cache'}",
        f"--state-dir={tmp_path / 'state'}",
        *apart,
    )
    names = sorted([*offered, "given"])
    told, cached, staged = [], [], []
    for start in range(3):
        with Server(*options) as server:
            if not start:
                server.load(case, "CPU", "given")
            until(partial(_has, server, names), "all are loaded")
            infos = [_told(server, name) for name in names]
            cached.append([info.from_cache for info, _ in infos])
            staged.append([note for info, _ in infos for note in info.notes if "by stage" in note])
            told.append([_lasting(info, layers) for info, layers in infos])
            for name in names:
                given, _ = offered.get(name, (case, ""))
                assert_same_outputs(server.infer(name, given.inputs), given.expected(), 1e-4)
                short: Mapping[str, Any] = {
                    port: np.asarray(x)[..., :1] for port, x in given.inputs.items()
                }
                with pytest.raises(grpc.RpcError) as refused:
                    server.infer(name, short)
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            source = pb.ModelSource(repository="plain")
            asked = pb.QueryNetworkRequest(device="CPU", model=source)
            query = server.stub.QueryNetwork(asked, timeout=CALL_SECONDS)
            assert set(query.supported_layers) == set(case.network.layer_names)
            assert server.stop() == 0, server.log()
    assert told[0] == told[1] == told[2]
    assert not cached[0][names.index("plain")]
    assert cached[1] == cached[2] == [True] * len(names)
    for note, name in zip(staged[0], names, strict=True):
        # The client's model is that of "plain", which the server has read before.
        assert ("check" in note) is (name != "given"), (name, note)
    for note, name in [*zip(staged[1], names, strict=True), *zip(staged[2], names, strict=True)]:
        assert "transform" not in note, (name, note)
        assert "check" not in note, (name, note)


def _has(server: Server, names: list[str]) -> bool:
    return server.networks() == names


def _told(server: Server, name: str) -> tuple[pb.NetworkInfo, list[pb.ExecutableLayer]]:
    reply = server.stub.GetNetwork(pb.GetNetworkRequest(name=name), timeout=CALL_SECONDS)
    return reply.info, list(reply.layers)


def _lasting(info: pb.NetworkInfo, layers: list[pb.ExecutableLayer]) -> Any:
    """What a network says of itself in every server."""
    ports = [str(port) for port in (*info.inputs, *info.outputs)]
    return ports, changes(info), dict(info.config), [str(layer) for layer in layers]
