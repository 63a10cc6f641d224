"""Native custom operators over the wire: devices that are given their library, and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import onnx
import pytest

from headrace.testing.occupied import eventually
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.parameters import decode_parameter
from tests.integration.child_processes import children
from tests.integration.harness import CALL_SECONDS, Server, details_of
from tests.support.custom_operators import DOMAIN, library, word_lengths

KEY = "CUSTOM_OPS_LIBRARIES"
CUSTOM = ("upper", "length")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """CPU has the library, APART too in a process of its own, PLAIN none, BROKEN a lost one."""
    path = tmp_path_factory.mktemp("settings") / "headrace.toml"
    path.write_text(f"""
devices = ["APART", "AUTO", "BATCH", "BROKEN", "CPU", "HETERO", "MULTI", "PLAIN", "TEMPLATE"]

[plugins.CPU.config]
{KEY} = "{library()}"

[plugins.APART]
device = "CPU"
[plugins.APART.config]
{KEY} = "{library()}"
ISOLATION = "PROCESS"

[plugins.BROKEN]
device = "CPU"
[plugins.BROKEN.config]
{KEY} = "/srv/secret/lost.so"

[plugins.PLAIN]
device = "CPU"
""")
    with Server("--config", str(path)) as running:
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


def model() -> pb.ModelSource:
    return pb.ModelSource(data=word_lengths().model.SerializeToString())


def query(server: Server, device: str, **config: str) -> Any:
    request = pb.QueryNetworkRequest(model=model(), device=device, config=config)
    return server.stub.QueryNetwork(request, timeout=CALL_SECONDS)


def assert_serves(server: Server, network: str) -> None:
    outputs: Any = server.infer(network, word_lengths().inputs)
    assert outputs["u"].tolist() == ["HEAD", "RACE", "Q"]
    assert outputs["y"].tolist() == [16, 16, 1]


@pytest.mark.parametrize("device", ["CPU", "APART", "HETERO:TEMPLATE,CPU", "BATCH:CPU(2)"])
def test_a_device_with_the_library_serves_its_operators(server: Server, device: str) -> None:
    assert not query(server, device).unsupported
    server.load(word_lengths(), device=device, name="words")
    assert_serves(server, "words")
    blob = server.export("words")
    server.unload("words")
    server.import_blob(blob, "again")
    assert_serves(server, "again")
    server.unload("again")


def test_a_split_network_has_them_where_the_library_is(server: Server) -> None:
    layers = query(server, "HETERO:PLAIN,CPU").supported_layers
    assert {layer: layers[layer] for layer in CUSTOM} == dict.fromkeys(CUSTOM, "CPU")
    assert layers["square"] == "CPU"  # the library alone knows the type of what it reads
    typed = word_lengths()
    typed.model.graph.value_info.append(
        onnx.helper.make_tensor_value_info("l", onnx.TensorProto.INT64, ["n"])
    )
    source = pb.ModelSource(data=typed.model.SerializeToString())
    apart = {"HETERO_MERGE_ISLANDS": "NO"}
    asked = pb.QueryNetworkRequest(model=source, device="HETERO:PLAIN,CPU", config=apart)
    reply = server.stub.QueryNetwork(asked, timeout=CALL_SECONDS)
    assert [each.device for each in reply.subgraphs] == ["CPU", "PLAIN"]
    info = server.load(typed, device="HETERO:PLAIN,CPU", config=apart)
    assert sorted(info.execution_devices) == ["CPU.0", "PLAIN.0"]
    assert_serves(server, "words")
    server.unload("words")


@pytest.mark.parametrize("device", ["PLAIN", "TEMPLATE", "HETERO:TEMPLATE,PLAIN"])
def test_a_device_without_it_refuses_them_one_by_one(server: Server, device: str) -> None:
    reply = query(server, device)
    assert {each.layer for each in reply.unsupported} >= set(CUSTOM)
    for each in reply.unsupported:
        if each.layer in CUSTOM:
            assert DOMAIN in each.reason
    with pytest.raises(grpc.RpcError) as caught:
        server.load(word_lengths(), device=device, name="words")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert DOMAIN in caught.value.details()


@pytest.mark.parametrize(
    "device",
    [
        "CPU",
        "APART",
        "PLAIN",
        "BATCH:CPU(2)",
        "HETERO:PLAIN,CPU",
        "MULTI:PLAIN,CPU",
        "AUTO:TEMPLATE,CPU",
    ],
)
def test_no_client_sets_it(server: Server, device: str) -> None:
    server.load(word_lengths(), device="CPU", name="words")
    blob = server.export("words")
    config = {KEY: library()}
    target = pb.Target(device=device)
    options = pb.ImportOptions(name="mine", device=device, config=config)
    parts = [pb.ImportNetworkRequest(options=options), pb.ImportNetworkRequest(chunk=blob)]
    calls: list[Callable[[], Any]] = [
        lambda: server.load(word_lengths(), device=device, name="mine", config=config),
        lambda: query(server, device, **config),
        lambda: server.stub.ImportNetwork(iter(parts), timeout=CALL_SECONDS),
    ]
    if ":" not in device:  # a virtual one has no such key itself
        change = pb.SetConfigRequest(target=target, config=config)
        calls.append(lambda: server.stub.SetConfig(change, timeout=CALL_SECONDS))
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert KEY in caught.value.details()
        assert "configuration file" in caught.value.details()
        assert details_of(caught.value).field == f"config['{KEY}']"
    server.unload("words")


def test_clients_see_the_librarys_name_and_not_its_folder(server: Server) -> None:
    info = server.load(word_lengths(), device="CPU", name="words")
    folder = str(Path(library()).parent)
    assert info.config[KEY] == Path(library()).name
    for target in (pb.Target(device="CPU"), pb.Target(device="APART"), pb.Target(network="words")):
        request = pb.GetConfigRequest(target=target, name=KEY)
        value = server.stub.GetConfig(request, timeout=CALL_SECONDS).value
        assert decode_parameter(value) == Path(library()).name
    listed = server.stub.ListDevices(pb.ListDevicesRequest(), timeout=CALL_SECONDS)
    assert folder not in str(info) + str(listed)
    server.unload("words")


def test_a_library_that_is_lost_keeps_its_device_from_starting_and_no_other(
    server: Server,
) -> None:
    reply = server.stub.ListDevices(pb.ListDevicesRequest(), timeout=CALL_SECONDS)
    (broken,) = (each for each in reply.devices if each.name == "BROKEN")
    assert broken.state == pb.DOWN
    assert "lost.so" in broken.reason
    assert "secret" not in broken.reason
    assert "/srv/secret/lost.so" in server.log()
    with pytest.raises(grpc.RpcError) as caught:
        server.load(word_lengths(), device="BROKEN")
    assert "lost.so" in caught.value.details()


def test_a_process_that_is_started_again_has_it_again(server: Server) -> None:
    server.load(word_lengths(), device="APART", name="words")
    (worker,) = children(server)
    worker.kill()

    def serves() -> bool:
        with suppress(grpc.RpcError):  # until the next process is there
            assert_serves(server, "words")
            return not worker.is_running()
        return False

    eventually(serves, "an answer of the next process")
    server.unload("words")
