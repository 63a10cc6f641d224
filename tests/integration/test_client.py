"""Both clients, line by line of their surface, against a real server and its real devices."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.client import Outputs, errors
from headrace.testing import networks
from headrace.testing.case import Case, parse
from tests.integration.harness import BASIC, CALL_SECONDS, Server, infer_request, until
from tests.support.client_fake import KINDS, connected

MLP, ADD, ENDLESS = networks.mlp(), networks.add(), networks.endless()


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    """The synchronous client, and the asyncio one with its coroutines run to their end."""
    with connected(request.param, server.address) as made:
        yield made
        left = made.networks()
        for network in left:
            network.unload()
        assert left == [], "a test that passed left networks behind"


def check(outputs: Any, case: Case) -> None:
    expected = case.expected()
    assert set(outputs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)


def test_a_network_is_loaded_asked_run_copied_and_unloaded(
    client: Any, device: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(MLP.model, path)
    network = client.load_network(path, device=device, config={"PERF_COUNT": "YES"}, name="m")
    check(network.infer(MLP.inputs), MLP)

    request = network.start_async(MLP.inputs)
    assert request.wait(timeout=CALL_SECONDS)
    check(request.result(), MLP)
    assert request.done()
    assert not request.cancel()
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    request.add_done_callback(told.put)
    request.wait()

    query = client.query_network(path, device=device, config={})
    layers = {node.name for node in MLP.model.graph.node}
    assert query.supported_layers == dict.fromkeys(layers, device)
    assert query.unsupported == []
    assert {name for _, names in query.subgraphs for name in names} <= layers

    assert client.get_metric(device, "FULL_DEVICE_NAME")
    client.set_config(device, {"NUM_STREAMS": "2"})
    assert client.get_config(device, "NUM_STREAMS") == 2
    client.set_config(device, {"NUM_STREAMS": "AUTO"})

    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 1
    assert network.get_config("PERF_COUNT") is True
    network.infer(MLP.inputs, performance_counts=True)
    profiled = {
        origin for layer in network.performance_counts() for origin in layer.original_layers
    }
    assert profiled
    assert profiled <= layers
    assert network.layers()

    blob = network.export()
    other = client.import_network(blob, device=device, name="copy")
    check(other.infer(MLP.inputs), MLP)
    assert other.info.origin == "import"
    other.unload()

    assert device in {each.name for each in client.devices() if each.state == "UP"}
    assert [each.name for each in client.networks()] == ["m"]
    same = client.network("m")
    assert (same.name, same.device) == ("m", device)
    assert same.inputs["x"].shape == ("N", 8)
    same.unload()


@pytest.mark.parametrize("form", ["path", "text", "bytes", "message"])
def test_a_model_may_be_a_path_bytes_or_a_message(client: Any, form: str, tmp_path: Path) -> None:
    path = tmp_path / "given.onnx"
    onnx.save(ADD.model, path)
    forms: dict[str, Any] = {
        "path": path,
        "text": str(path),
        "bytes": path.read_bytes(),
        "message": ADD.model,
    }
    assert client.query_network(forms[form], device="TEMPLATE").unsupported == []
    network = client.load_network(forms[form], device="TEMPLATE", name=f"by-{form}")
    check(network.infer(ADD.inputs), ADD)
    network.unload()


def save_apart(folder: Path, **options: Any) -> Path:
    """MLP with its weights in files beside it."""
    model = onnx.ModelProto.FromString(MLP.model.SerializeToString())  # saving changes it
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, **options)
    return path


@pytest.mark.parametrize("in_one_file", [True, False], ids=["one file", "many files"])
def test_weights_in_files_beside_a_model_are_sent_along(
    client: Any, in_one_file: bool, tmp_path: Path
) -> None:
    path = save_apart(tmp_path, all_tensors_to_one_file=in_one_file)
    assert len(list(tmp_path.iterdir())) > 1
    assert client.query_network(path, device="TEMPLATE").unsupported == []
    network = client.load_network(path, device="TEMPLATE", name="m")
    check(network.infer(MLP.inputs), MLP)
    network.unload()


def test_the_command_line_sends_weights_along(server: Server, tmp_path: Path) -> None:
    path = save_apart(tmp_path, location="weights")
    program = [sys.executable, "-c", "from headrace.program import main; main()"]
    ended = subprocess.run(
        [*program, "load", str(path), "--device", "TEMPLATE", "--server", server.address],
        capture_output=True,
        text=True,
        timeout=CALL_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    with connected("sync", server.address) as client:
        network = client.network("model")
        check(network.infer(MLP.inputs), MLP)
        network.unload()


def test_what_a_model_says_of_itself_reaches_the_client_within_bounds(client: Any) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(ADD.model)
    said = {"names": "{0: 'cat', 1: 'dog'}", "long": "x" * 70_000, "text": "\N{SNOWMAN}", "": ""}
    onnx.helper.set_model_props(model, said)
    network = client.load_network(model, device="CPU", name="said")
    assert network.metadata == {key: text for key, text in said.items() if key != "long"}
    assert client.network("said").metadata == network.metadata
    (listed,) = (each for each in client.networks() if each.name == "said")
    assert listed.metadata == {}
    copy = client.import_network(network.export(), name="copy")
    assert copy.metadata == network.metadata
    copy.unload()
    network.unload()


def test_a_large_model_is_uploaded_and_its_progress_is_told(client: Any) -> None:
    weight = np.arange(2 << 20, dtype=np.float32)
    model = parse(
        "large (float[1] x) => (float[1] y) { s = ReduceMax<keepdims=0>(w) y = Add(x, s) }",
        {"w": weight},
    )
    told: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    network = client.load_network(
        model, device="TEMPLATE", name="large", progress=lambda *args: told.put(args)
    )
    assert network.infer({"x": np.ones(1, np.float32)})["y"] == weight[-1] + 1
    network.unload()
    sizes = [told.get() for _ in range(told.qsize())]
    assert [sent for sent, _ in sizes] == sorted(sent for sent, _ in sizes)
    assert sizes[-1] == (model.ByteSize(), model.ByteSize())


def test_only_the_outputs_asked_for_come_and_timings_with_them(client: Any, device: str) -> None:
    network = client.load_network(MLP.model, device=device, name="m")
    outputs = network.infer(
        MLP.inputs, outputs=["label"], priority=3, timeout=CALL_SECONDS, performance_counts=True
    )
    assert list(outputs) == ["label"]
    assert outputs.timings.execution_seconds > 0
    assert outputs.performance_counts
    network.unload()


def test_what_a_network_takes_may_differ_from_what_the_client_sends(
    client: Any, device: str
) -> None:
    case = networks.image()
    network = client.load_network(
        case.model,
        device=device,
        name="m",
        preprocessing={
            "x": {
                "dtype": "uint8",
                "layout": "NHWC",
                "network_layout": "NCHW",
                "mean": [10, 20, 30],
                "scale": 255,
            }
        },
        postprocessing={"scores": {"dtype": "float64"}},
    )
    sent = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    taken = ((sent - np.array([10, 20, 30], np.float32)) / 255).transpose(0, 3, 1, 2)
    outputs = network.infer({"x": sent})
    assert outputs["scores"].dtype == np.float64
    expected = case.expected({"x": np.ascontiguousarray(taken, np.float32)})
    np.testing.assert_allclose(outputs["scores"], expected["scores"], rtol=1e-3, atol=1e-4)
    network.unload()


@pytest.mark.parametrize(
    "case",
    [
        networks.string_join(),
        networks.sequence(),
        networks.optional(True),
        networks.optional(False),
        networks.loop(),
    ],
    ids=str,
)
def test_values_of_every_kind_go_there_and_back(client: Any, case: Case) -> None:
    network = client.load_network(case.model, device="TEMPLATE", name="m")
    outputs = network.infer(case.inputs)
    for name, expected in case.expected().items():
        if isinstance(expected, list):
            assert [each.tolist() for each in outputs[name]] == [each.tolist() for each in expected]
        else:
            assert np.asarray(outputs[name]).tolist() == np.asarray(expected).tolist()
    network.unload()


def test_many_inputs_go_over_one_stream_and_one_that_fails_ends_itself(
    client: Any, device: str
) -> None:
    case = networks.fragile()
    network = client.load_network(case.model, device=device, name="m")
    places = [number % 6 for number in range(60)]  # 5 is out of bounds
    inputs = [{"x": case.inputs["x"], "at": np.array([at], np.int64)} for at in places]
    results = dict(network.infer_many(inputs, in_flight=8))
    assert sorted(results) == list(range(60))
    for index, at in enumerate(places):
        if at == 5:
            assert isinstance(results[index], errors.Error)
        else:
            assert isinstance(results[index], Outputs)
            assert results[index]["y"] == np.asarray(case.inputs["x"])[at]
    network.unload()


def test_many_texts_go_to_and_fro_in_calls_and_on_streams(client: Any) -> None:
    """They are read and written beside other calls."""
    model = parse("texts (string[n] x) => (string[n] y) { y = Identity(x) }", {})
    network = client.load_network(model, device="CPU", name="m")
    inputs = {"x": np.array([f"text {at}" for at in range(20_000)], object)}
    answers = [network.infer(inputs), *dict(network.infer_many([inputs] * 3)).values()]
    for answer in answers:
        assert answer["y"].tolist() == inputs["x"].tolist()
    network.unload()


def test_a_request_under_way_is_waited_for_in_vain_and_cancelled(client: Any, device: str) -> None:
    network = client.load_network(ENDLESS.model, device=device, name="m")
    request = network.start_async(ENDLESS.inputs)
    assert request.wait(timeout=0.05) is False
    assert not request.done()
    assert request.cancel()
    assert request.wait(timeout=CALL_SECONDS)
    with pytest.raises(errors.Cancelled):
        request.result()
    network.unload()  # returns when nothing of it runs any more


def test_time_that_is_up_stops_the_run(client: Any, device: str) -> None:
    network = client.load_network(ENDLESS.model, device=device, name="m")
    with pytest.raises(errors.DeadlineExceeded):
        network.infer(ENDLESS.inputs, timeout=0.1)
    request = network.start_async(ENDLESS.inputs, timeout=0.1)
    with pytest.raises(errors.DeadlineExceeded):
        request.result()
    network.set_config({"EXECUTION_TIMEOUT": 0.1})
    with pytest.raises(errors.DeadlineExceeded, match="EXECUTION_TIMEOUT"):
        network.infer(ENDLESS.inputs)
    network.unload()


def test_a_name_in_use_is_refused_or_replaced(client: Any) -> None:
    first = client.load_network(ADD.model, device="TEMPLATE", name="m")
    with pytest.raises(errors.AlreadyExists, match="'m'"):
        client.load_network(MLP.model, device="TEMPLATE", name="m")
    second = client.load_network(MLP.model, device="TEMPLATE", name="m", replace=True)
    assert second.info.generation > first.info.generation
    check(second.infer(MLP.inputs), MLP)
    second.unload()


def test_a_name_that_nobody_has_is_not_found_and_a_near_one_offered(client: Any) -> None:
    network = client.load_network(ADD.model, device="TEMPLATE", name="m-long")
    with pytest.raises(errors.NotFound, match="did you mean 'm-long'"):
        client.network("m-lnog")
    with pytest.raises(errors.NotFound, match="did you mean 'TEMPLATE'"):
        client.load_network(ADD.model, device="TEMPLAET", name="m")
    with pytest.raises(errors.NotFound, match="did you mean 'PERF_COUNT'"):
        network.get_config("PREF_COUNT")
    with pytest.raises(errors.NotFound, match="FULL_DEVICE_NAME"):
        client.get_metric("TEMPLATE", "FULL_DEVICE_NAM")
    network.unload()
    with pytest.raises(errors.NotFound):
        network.infer(ADD.inputs)


def test_a_model_that_is_no_file_needs_a_name(client: Any) -> None:
    for load in (client.load_network, client.import_network):
        with pytest.raises(errors.InvalidArgument, match="pass name="):
            load(ADD.model.SerializeToString(), device="TEMPLATE")


def test_a_network_of_unknown_layers_is_refused_with_all_of_them(client: Any, device: str) -> None:
    model = networks.unknown_operators().model
    query = client.query_network(model, device=device)
    assert {"strange", "stranger"} <= {each.layer for each in query.unsupported}
    assert all(each.op_type and each.reason for each in query.unsupported)
    with pytest.raises(errors.FailedPrecondition, match=r"(?s)strange.*stranger"):
        client.load_network(model, device=device, name="m")


def test_an_input_that_does_not_fit_is_named_whoever_finds_it(client: Any) -> None:
    network = client.load_network(ADD.model, device="TEMPLATE", name="m")
    for inputs, said in (
        ({}, "x"),
        ({**ADD.inputs, "w": 1}, "w"),
        ({**ADD.inputs, "x": np.zeros((2, 4), np.float32)}, "x"),
        ({**ADD.inputs, "x": np.zeros((2, 3), np.int32)}, "x"),
    ):
        with pytest.raises(errors.InvalidArgument) as caught:
            network.infer(inputs)
        assert str(caught.value.details.field).startswith(f"inputs['{said}']")
    with pytest.raises(errors.InvalidArgument) as refused:
        client.load_network(b"garbage", device="TEMPLATE", name="other")
    assert refused.value.details.field == "model"
    network.unload()


def test_a_device_learns_operators_from_functions_or_says_that_it_does_not(client: Any) -> None:
    case = networks.local_function()
    assert client.add_extension("CPU", case.model) == ["headrace.test::Own"]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.functions[:]
    network = client.load_network(model, device="CPU", name="m")
    check(network.infer(case.inputs), case)
    network.unload()
    with pytest.raises(errors.Unimplemented, match="TEMPLATE"):
        client.add_extension("TEMPLATE", case.model)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_queue_is_said_at_once_or_waited_for(kind: str) -> None:
    with Server(*BASIC) as server, connected(kind, server.address) as client:
        client.set_config("TEMPLATE", {"NUM_STREAMS": 1, "QUEUE_CAPACITY": 1})
        client.load_network(ENDLESS.model, device="TEMPLATE", name="endless")
        add = client.load_network(ADD.model, device="TEMPLATE", name="add")
        request = infer_request("endless", ENDLESS.inputs)
        held = [server.stub.Infer.future(request) for _ in range(2)]
        accepted, refused = "headrace_device_accepted_total", "headrace_device_refused_total"
        until(lambda: server.total(accepted, device="TEMPLATE.0") == 2, "a full device")
        with pytest.raises(errors.ResourceExhausted) as caught:
            add.infer(ADD.inputs)
        delay = caught.value.details.retry_delay_seconds
        assert delay is not None
        assert delay > 0

        def make_room() -> None:
            until(lambda: server.total(refused) >= 2, "another refusal")
            for call in held:
                call.cancel()

        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(make_room)
            check(add.infer(ADD.inputs, retry_when_full=True), ADD)
            made.result()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_gone_is_unavailable_and_named(kind: str) -> None:
    with Server(*BASIC) as server, connected(kind, server.address) as client:
        network = client.load_network(ADD.model, device="TEMPLATE", name="m")
        assert server.stop() == 0
        with pytest.raises(errors.Unavailable, match=server.address):
            network.infer(ADD.inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_of_the_repository_is_loaded_by_name(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "adder"
    folder.mkdir()
    onnx.save(ADD.model, folder / "model.onnx")
    (folder / "network.toml").write_text('device = "TEMPLATE"\n[config]\nPERF_COUNT = false\n')
    with (
        Server(*BASIC, "--model-repository", str(tmp_path)) as server,
        connected(kind, server.address) as client,
    ):
        assert client.network("adder").info.origin == "repository"
        second = client.load_network(
            repository="adder", name="second", config={"EXECUTION_TIMEOUT": 5}
        )
        assert (second.device, second.get_config("PERF_COUNT")) == ("TEMPLATE", False)
        assert second.get_config("EXECUTION_TIMEOUT") == 5
        check(second.infer(ADD.inputs), ADD)
        assert client.query_network(repository="adder", device="TEMPLATE").unsupported == []
        with pytest.raises(errors.Error, match="adder"):
            client.load_network(repository="addre", name="third")
