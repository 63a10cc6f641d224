"""The command line ``headrace``: what it prints, as text and as JSON, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from rich.progress import Progress
from typer.testing import CliRunner, Result

from headrace import program
from headrace.client import QueryResult, Subgraph, UnsupportedLayer, errors
from headrace.client.cli import console, infer, networks, query
from headrace.client.cli.app import make_app
from headrace.client.cli.texts import describe
from headrace.client.info import Port
from headrace.client.outputs import Outputs
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import ErrorDetails
from tests.support.client_fake import Fake, running


@pytest.fixture
def run(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HEADRACE_SERVER", fake.target)

    def run(*arguments: str) -> Result:
        texts = [str(argument) for argument in arguments]
        return CliRunner().invoke(make_app(texts), texts)

    return run


def json_of(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"model")
    return path


# ---- devices, metrics, configuration ----


def test_devices_are_a_table(run: Any) -> None:
    result = run("devices")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "DEVICE  STATE  IDS  NAME      BACKEND  REASON",
        "CPU     UP     0    Fake CPU",
        "CUDA    DOWN                           no driver",
    ]


def test_devices_as_json(run: Any) -> None:
    up, down = json_of(run("devices", "--json"))
    assert up == {
        "name": "CPU",
        "state": "UP",
        "reason": "",
        "full_name": "Fake CPU",
        "device_ids": ["0"],
        "backend_version": "",
    }
    assert down["reason"] == "no driver"


def test_one_metric_is_its_value(run: Any, fake: Fake) -> None:
    assert run("metric", "CPU", "FULL_DEVICE_NAME").stdout == "Fake CPU\n"
    assert run("metric", "CPU", "RANGE_FOR_STREAMS").stdout == "1 to 8\n"
    run("metric", "CPU", "FULL_DEVICE_NAME", "--option", "DEVICE_ID=1")
    assert dict(fake.requests("GetMetric")[-1].options) == {"DEVICE_ID": "1"}
    run("metric", "echo", "OPTIMAL_NUMBER_OF_INFER_REQUESTS", "--network")
    assert fake.requests("GetMetric")[-1].target.network == "echo"


def test_a_networks_name_without_its_option_is_explained(run: Any) -> None:
    refused = run("metric", "echo", "NOPE")
    assert refused.exit_code == 1
    assert "add --network if you mean the network 'echo'" in refused.stderr
    assert "--network" not in run("metric", "CPU", "NOPE").stderr


def test_without_a_name_all_metrics_are_shown(run: Any) -> None:
    assert run("metric", "CPU").stdout.splitlines() == [
        "FULL_DEVICE_NAME   Fake CPU",
        "RANGE_FOR_STREAMS  1 to 8",
    ]
    assert json_of(run("metric", "CPU", "--json")) == {
        "FULL_DEVICE_NAME": "Fake CPU",
        "RANGE_FOR_STREAMS": {"minimum": 1, "maximum": 8, "step": 1},
    }


def test_configuration_is_read_and_set(run: Any, fake: Fake) -> None:
    assert run("config", "CPU", "PERF_COUNT").stdout == "YES\n"
    assert run("config", "CPU").stdout == "NUM_STREAMS  YES\nPERF_COUNT   YES\n"
    assert json_of(run("config", "CPU", "PERF_COUNT", "--json")) == {"PERF_COUNT": True}
    assert run("config", "CPU", "NUM_STREAMS=2", "PERF_COUNT=NO").exit_code == 0
    assert dict(fake.requests("SetConfig")[0].config) == {"NUM_STREAMS": "2", "PERF_COUNT": "NO"}
    assert run("config", "echo", "PERF_COUNT=NO", "--network").exit_code == 0
    assert fake.requests("SetConfig")[1].target.network == "echo"


# ---- the version ----


def test_the_version_is_that_of_the_distribution(run: Any) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"headrace {version('headrace')}\n")


# ---- versions ----


def test_the_repository_is_a_table(run: Any) -> None:
    assert run("repository").stdout.splitlines() == [
        "NETWORK  VERSION  STATE   SHARE  MEMORY  IDLE   REASON",
        "echo     1        READY   90 %   3 MiB   4.0 s",
        "echo     2        READY   10 %   -       -      bad model",
        "other    7        FAILED         -       -",
        "third                            -       -      leads out",
    ]
    assert json_of(run("repository", "--json"))[0] == {
        "name": "echo",
        "version": "1",
        "state": "READY",
        "reason": "",
        "share": 90,
        "memory_bytes": 3 << 20,
        "idle_seconds": 4.0,
    }


def test_traffic_is_set_shown_and_given_back(run: Any, fake: Fake) -> None:
    assert json_of(run("traffic", "echo", "1=90", "2=10", "--json")) == {"1": 90, "2": 10}
    assert dict(fake.requests("SetTraffic")[0].shares) == {"1": 90, "2": 10}
    assert len(run("traffic", "echo").stdout.splitlines()) == 3
    assert len(fake.requests("SetTraffic")) == 1
    assert run("traffic", "echo", "--default").exit_code == 0
    assert dict(fake.requests("SetTraffic")[1].shares) == {}


def test_a_shadow_is_set_and_ended(run: Any, fake: Fake) -> None:
    assert run("shadow", "echo", "--version", "3").exit_code == 0
    assert run("shadow", "echo", "--percent", "0").exit_code == 0
    given, ended = fake.requests("SetShadow")
    assert given == pb.SetShadowRequest(network="echo", version="3", percent=5)
    assert ended == pb.SetShadowRequest(network="echo")


@pytest.mark.parametrize("wrong", [["1"], ["1=a"], ["1=1", "1=2"], ["1=10", "--default"]])
def test_shares_that_cannot_be_are_refused(run: Any, fake: Fake, wrong: list[str]) -> None:
    assert run("traffic", "echo", *wrong).exit_code != 0
    assert not fake.requests("SetTraffic")


def test_one_version_is_unloaded(run: Any, fake: Fake) -> None:
    assert run("unload", "echo", "--version", "2").stdout == "unloaded echo version 2\n"
    assert fake.requests("UnloadNetwork")[0].version == "2"


# ---- networks ----


def test_load_sends_everything(run: Any, fake: Fake, model: Path) -> None:
    arguments = ["load", model, "--device", "HETERO:A,B", "-c", "NUM_STREAMS=2", "--name", "m"]
    arguments += ["--affinity", "Relu_0=A", "--replace"]
    arguments += ["--preprocessing", '{"x": {"dtype": "uint8"}}']
    result = run(*arguments, "--postprocessing", '{"y": {"dtype": "float16"}}')
    assert result.exit_code == 0, result.output
    assert fake.requests("LoadNetwork")[0] == pb.LoadNetworkRequest(
        name="m",
        model=pb.ModelSource(data=b"model"),
        device="HETERO:A,B",
        config={"NUM_STREAMS": "2"},
        affinities={"Relu_0": "A"},
        inputs={"x": pb.InputOptions(dtype=pb.DataType.UINT8)},
        outputs={"y": pb.OutputOptions(dtype=pb.DataType.FLOAT16)},
        replace=True,
    )
    assert result.stdout.splitlines() == [
        "network    m",
        "device     HETERO:A,B",
        "input      x float32[batch,?]",
        "output     y float32[...]",
        "output     z unknown[...]",
        "loaded in  0.500 s",
    ]
    assert result.stderr == "note: fp16 to fp32\n"


def test_load_as_json(run: Any, model: Path) -> None:
    info = json_of(run("load", model, "--json"))
    assert info["name"] == "model"
    assert info["inputs"][0] == {
        "name": "x",
        "dtype": "float32",
        "shape": ["batch", None],
        "kind": "tensor",
        "optional": False,
        "layout": "",
        "classes": [],
    }
    assert info["load_seconds"] == 0.5


def test_a_file_without_a_usable_name_needs_a_name(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "模型.onnx"
    path.write_bytes(b"model")
    result = run("load", path)
    assert result.exit_code == 1
    assert "the network has no name: pass name= (command line: --name)" in result.stderr
    assert run("load", path, "--name", "m").exit_code == 0


def test_load_from_the_repository(run: Any, fake: Fake) -> None:
    assert run("load", "--repository", "resnet").exit_code == 0
    assert fake.requests("LoadNetwork")[0].model.repository == "resnet"


def test_networks_are_listed(run: Any) -> None:
    lines = run("networks").stdout.splitlines()
    assert lines[1].split()[:4] == ["echo", "1", "CPU", "READY"]
    assert lines[2].split() == ["bad", "1", "FAILED", "no", "memory"]
    assert [network["name"] for network in json_of(run("networks", "--json"))] == ["echo", "bad"]


def test_formulas_of_sizes_are_not_shown_nor_are_dozens_of_ports() -> None:
    shape = (1, None, "batch", "((batch + 3) // 2)", "a_name_that_a_program_made_up", "")
    port = Port("x", "float32", shape)
    assert describe(port) == "x float32[1,?,batch,?,?,?]"
    assert networks._listed([port] * 4).count("x float32") == 4
    assert networks._listed([port] * 30).endswith("] and 26 more")


def test_a_missing_token_is_asked_for_by_the_option_that_gives_it(run: Any, fake: Fake) -> None:
    text = "this needs a credential; send 'authorization: Bearer TOKEN'"
    fake.failures.append(ErrorDetails(grpc.StatusCode.UNAUTHENTICATED, text))
    result = run("networks")
    assert result.exit_code == 1
    assert "this needs a credential; give --token-file FILE" in result.stderr


def test_networks_that_only_some_replicas_have_name_them(run: Any, fake: Fake, model: Path) -> None:
    assert "REPLICAS" not in run("networks").stdout, "a server alone has none"
    assert "replicas" not in run("load", model).stdout
    fake.replicas = ("r1", "r2")
    lines = run("networks").stdout.splitlines()
    assert lines[0].endswith("  REPLICAS")
    assert lines[1].endswith("  all")
    assert lines[2].endswith("  r1, r2")
    assert "replicas   r1, r2" in run("load", model).stdout.splitlines()


def test_a_query_shows_each_layer(run: Any, model: Path) -> None:
    assert run("query", model, "--device", "CPU").stdout.splitlines() == [
        "LAYER   DEVICE  SUBGRAPH  REASON",
        "Relu_0  CPU     1",
        "F_1     -                 Foo: no kernel",
        "1 supported layer, 1 unsupported layer",
        "subgraph 1 on CPU: 1 layer",
        "note: moved from X to CPU (why): Relu_0",
    ]
    assert json_of(run("query", model, "--json")) == {
        "supported_layers": {"Relu_0": "CPU"},
        "unsupported": [{"layer": "F_1", "op_type": "Foo", "reason": "no kernel"}],
        "subgraphs": [{"device": "CPU", "layers": ["Relu_0"], "step": ""}],
        "notes": ["moved from X to CPU (why): Relu_0"],
    }


def test_a_query_of_many_layers_groups_those_with_the_same_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layers = {f"conv{n}": "CPU" for n in range(300)}
    missing = [UnsupportedLayer(f"f{n}", "Foo", "no kernel") for n in range(2)]
    result = QueryResult(layers, missing, [Subgraph("CPU", list(layers))])
    query._print_table(result, full=False)
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "LAYER DEVICE SUBGRAPH REASON",
        "conv0, conv1, conv2 and 297 more CPU 1",
        "f0, f1 - Foo: no kernel",
        "300 supported layers, 2 unsupported layers",
        "subgraph 1 on CPU: 300 layers",
    ]
    query._print_table(result, full=True)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 302 + 2


def test_a_query_of_a_pipeline_tells_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [Subgraph("CPU.0", ["find", "find/y"], "find"), Subgraph("GPU.0", ["read"], "read")]
    layers = {"find": "CPU.0", "find/y": "CPU.0", "read": "GPU.0"}
    query._print_table(QueryResult(layers, [], steps), full=False)
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "LAYER DEVICE STEP REASON",
        "find CPU.0 1",
        "find/y CPU.0 1",
        "read GPU.0 2",
        "3 supported layers, 0 unsupported layers",
        "step 1 on CPU.0: find, 1 layer",
        "step 2 on GPU.0: read, 0 layers",
    ]


def test_a_query_groups_reasons_that_differ_in_the_layers_own_names_and_sizes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = [
        UnsupportedLayer(f"c{n}", "Conv", f"'k{n}' has {n} of (1, {n}, 3)") for n in range(40)
    ]
    missing += [UnsupportedLayer(f"r{n}", "Relu", f"no float{n}") for n in (16, 64)]
    query._print_table(QueryResult({}, missing, []), full=False)
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "LAYER DEVICE SUBGRAPH REASON",
        "c0, c1, c2 and 37 more - Conv: 'k0' has 0 of (1, 0, 3), or the like",
        "r16 - Relu: no float16",
        "r64 - Relu: no float64",
        "0 supported layers, 42 unsupported layers",
    ]


def test_unload(run: Any, fake: Fake) -> None:
    assert run("unload", "echo").stdout == "unloaded echo\n"
    assert json_of(run("unload", "echo", "--json")) == {"unloaded": "echo"}
    assert len(fake.requests("UnloadNetwork")) == 2


def test_export_and_import(run: Any, fake: Fake, tmp_path: Path) -> None:
    blob = tmp_path / "echo.blob"
    assert json_of(run("export", "echo", "-o", blob, "--json")) == {
        "network": "echo",
        "file": str(blob),
        "size_bytes": 8,
    }
    assert blob.read_bytes() == b"HEADRACE"
    result = run("import", blob, "--name", "copy", "-c", "A=1", "--device", "CPU", "--replace")
    assert result.stdout.startswith("network    copy\n")
    assert fake.uploaded == b"HEADRACE"


# ---- infer ----


def test_infer_prints_a_summary(run: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.5, 2]], np.float32))
    assert run("infer", "echo", "--input", f"x={tmp_path}/x.npy").stdout.splitlines() == [
        "y float32[1,2]",
        "  [[1.5 2. ]]",
        "queue 250.000 ms, execution 500.000 ms",
    ]


def test_infer_as_json(run: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.5, np.nan]], np.float32))
    found = json_of(
        run("infer", "echo", "-i", f"{tmp_path}/x.npy", "--json", "--performance-counts")
    )
    assert found["outputs"] == {
        "y": {"dtype": "float32", "shape": [1, 2], "values": [[1.5, "NaN"]]}
    }
    assert found["timings"]["queue_seconds"] == 0.25
    assert found["request_id"] == "made-up"
    assert found["performance_counts"][0]["layer"] == "Relu_0"


def test_outputs_are_written_to_a_folder(run: Any, tmp_path: Path) -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.savez(tmp_path / "all.npz", x=array)
    folder = tmp_path / "out" / "deep"
    result = run("infer", "echo", "-i", f"{tmp_path}/all.npz", "--output-dir", folder)
    assert result.stdout.startswith(f"y float32[2,4] -> {folder}/y.npy\n")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), array)


def test_the_largest_values_are_shown_with_their_places(run: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[0.25, 9, np.nan], [3, 4, 5]], np.float32))
    arguments = ["infer", "echo", "-i", f"{tmp_path}/x.npy", "--top", "2"]
    assert run(*arguments).stdout.splitlines()[1:3] == ["  0,1  9", "  1,2  5"]
    assert json_of(run(*arguments, "--json"))["outputs"]["y"]["top"] == [
        {"index": [0, 1], "value": 9.0},
        {"index": [1, 2], "value": 5.0},
    ]


def test_json_says_that_it_leaves_out_many_values(run: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5001, 2), np.float32))
    found = json_of(run("infer", "echo", "-i", f"{tmp_path}/x.npy", "--json"))["outputs"]["y"]
    assert "--output-dir writes them" in found["omitted"]
    assert "values" not in found


def test_what_has_no_largest_value_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    array = np.array(["b", "a"], object)
    infer._print(Outputs(pb.InferReply(), []), {"y": array}, {}, 1)
    assert capsys.readouterr().out.splitlines()[:2] == ["y string[2]", "  ['b' 'a']"]


def test_the_options_of_a_request_are_sent(run: Any, fake: Fake, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 2), np.float32))
    arguments = ["infer", "echo", "-i", f"{tmp_path}/x.npy", "--output", "y", "--priority", "3"]
    result = run(*arguments, "--timeout", "5", "--performance-counts")
    assert "relu_f32" in result.stdout
    (request,) = fake.requests("Infer")
    assert (list(request.outputs), request.priority) == (["y"], 3)


# ---- failures ----


def test_an_error_is_one_line_and_status_1(run: Any) -> None:
    result = run("unload", "ech")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "error: unknown network 'ech'; did you mean 'echo'?\n"


def test_an_unreachable_server_has_a_remedy(run: Any) -> None:
    with running() as gone:
        target = gone.target
    result = run("load", "--repository", "r", "--server", target)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: cannot reach the server at {target}: ")
    assert "is `headrace serve` running there?" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_full_queue_says_when_to_try_again(run: Any, fake: Fake) -> None:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    fake.failures.append(ErrorDetails(code, "queue full", retry_delay_seconds=0.5))
    assert run("devices").stderr == "error: queue full; try again in 0.5 s\n"


def test_an_internal_error_is_told_in_the_server_s_words(run: Any, fake: Fake) -> None:
    message = "internal error 0f; the server's log explains it"
    fake.failures.append(ErrorDetails(grpc.StatusCode.INTERNAL, message, request_id="r7"))
    assert run("devices").stderr == f"error: {message}\n"


def error_of(result: Result) -> Any:
    """What a program reads of a failed command: one line on the standard error."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert json.loads(line).keys() == {"error"}
    return json.loads(line)["error"]


def test_for_programs_an_error_is_an_object_with_all_that_is_known_of_it(
    run: Any, fake: Fake
) -> None:
    fake.failures.append(
        ErrorDetails(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "queue full",
            reason="QUEUE_FULL",
            field="network",
            metadata={"device": "CPU.0"},
            retry_delay_seconds=0.5,
            request_id="r7",
        )
    )
    result = run("devices", "--json")
    assert result.exit_code == 1
    assert error_of(result) == {
        "code": "RESOURCE_EXHAUSTED",
        "message": "queue full; try again in 0.5 s",
        "reason": "QUEUE_FULL",
        "field": "network",
        "metadata": {"device": "CPU.0"},
        "retry_delay_seconds": 0.5,
        "request_id": "r7",
    }


def test_for_programs_what_the_command_itself_meets_is_an_object_as_well(
    run: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    result = run("export", "echo", "-o", tmp_path / "file" / "blob", "--json")
    assert result.exit_code == 1
    error = error_of(result)
    assert error["code"] == "FAILED_PRECONDITION"
    assert error["message"].startswith("cannot write ")


@pytest.mark.parametrize("arguments", [["load"], ["devices", "--nope"], ["infer"]])
def test_for_programs_wrong_usage_is_an_object_as_well(run: Any, arguments: list[str]) -> None:
    result = run(*arguments, "--json")
    assert result.exit_code == 2
    error = error_of(result)
    assert (error["code"], error["reason"]) == ("INVALID_ARGUMENT", "USAGE")
    assert error["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["load"], "pass either MODEL or --repository"),
        (["load", "m.onnx", "--repository", "r"], "pass either MODEL or --repository"),
        (["load", "m.onnx", "-c", "NUM_STREAMS"], "is not KEY=VALUE"),
        (["load", "m.onnx", "-c", "K=1", "-c", "K=2"], "K is given twice"),
        (["infer", "echo", "-i", "x.npy", "--timeout", "0"], "--timeout"),
        (["query", "m.onnx", "--dot", "-", "--json"], "standard output holds one result"),
        (["load", "m.onnx", "--preprocessing", "{"], "is not JSON"),
        (["load", "m.onnx", "--preprocessing", '{"x": 1}'], "must be an object of objects"),
        (["infer", "echo", "-i", "x.bin", "--shape", "x=1,a"], "is not like 1,3,224,224"),
        (["infer", "echo"], "input"),
        (["devices", "--nope"], "--nope"),
        (["nope"], "nope"),
    ],
)
def test_wrong_usage_is_status_2(run: Any, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_cannot_be_written_is_an_error(run: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 2), np.float32))
    (tmp_path / "file").touch()
    result = run("export", "echo", "-o", tmp_path / "file" / "blob")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot write ")
    result = run("infer", "echo", "-i", tmp_path / "x.npy", "-o", tmp_path / "file")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot write to ")


# ---- commands of other packages ----


def entry_point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group="headrace.commands")


def greet(name: str = "you") -> None:
    """Greet."""
    console.print_json({"hello": name})


HERE = "tests.unit.client.cli.test_cli"


def test_a_function_becomes_a_command() -> None:
    arguments = ["greet", "--name", "them"]
    app = make_app(arguments, [entry_point("greet", f"{HERE}:greet")])
    assert json_of(CliRunner().invoke(app, arguments)) == {"hello": "them"}


def test_a_command_that_cannot_be_imported_breaks_no_other() -> None:
    broken = entry_point("broken", "no.such.module:command")
    server = entry_point("serve", "headrace.server.nothing:serve")
    others = [broken, server, entry_point("greet", f"{HERE}:greet")]
    app = make_app(["--help"], others)
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert "Unavailable: No module named 'no'" in text
    assert "Greet." in text
    result = CliRunner().invoke(app, ["broken"])
    assert result.exit_code == 1
    assert result.stderr == "error: the command broken cannot start: No module named 'no'\n"
    assert "install headrace with its extra 'server'" in CliRunner().invoke(app, ["serve"]).stderr


def test_a_command_with_options_that_cannot_be_imported_still_says_why() -> None:
    app = make_app(["serve"], [entry_point("serve", "headrace.server.nothing:serve")])
    result = CliRunner().invoke(app, ["serve", "--port", "0"])
    assert result.exit_code == 1
    assert "cannot start" in result.stderr


def test_others_are_not_imported_for_the_clients_own_commands() -> None:
    def names(arguments: list[str]) -> list[str | None]:
        app = make_app(arguments, [entry_point("greet", f"{HERE}:greet")])
        return [command.name for command in app.registered_commands]

    assert "greet" not in names(["devices", "--json"])
    assert "greet" in names(["--help"])


def test_none_may_take_a_name_of_the_clients() -> None:
    app = make_app(["--help"], [entry_point("devices", f"{HERE}:greet")])
    assert [c.name for c in app.registered_commands].count("devices") == 1


# ---- the program ----


def headrace(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The console script, run as a process."""
    command = [sys.executable, "-c", "from headrace.program import main; main()", *arguments]
    options = {"stdout": subprocess.PIPE, **options}
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)


def test_without_typer_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_spec", lambda name: None if name == "typer" else True)
    with pytest.raises(SystemExit) as stopped:
        program.main()
    assert stopped.value.code == (
        "error: the command line needs typer; install headrace with its extra 'cli'"
    )


def test_ctrl_c_ends_it_quietly_even_where_an_import_would_take_it_for_a_failure(
    tmp_path: Path,
) -> None:
    (tmp_path / "typer.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    [None for _ in range(10)]\n"
        "except KeyboardInterrupt:\n"
        "    raise ImportError('initialization failed')\n",
        encoding="utf-8",
    )
    ended = headrace("devices", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_command_in_the_background_of_a_script_ignores_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "os._exit(0 if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else 3)\n",
        encoding="utf-8",
    )
    script = f"trap '' INT; {sys.executable} -c 'from headrace.program import main; main()' devices"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.run(["/bin/sh", "-c", script], env=environment, check=False).returncode == 0


def test_ctrl_c_ends_a_command_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(console, "Client", interrupted)
    monkeypatch.setattr(sys, "argv", ["headrace", "devices"])
    with pytest.raises(SystemExit) as stopped:
        program.main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("arguments", "unbuffered"), [(["devices"], "1"), (["--help"], "")])
def test_a_full_output_is_told(fake: Fake, arguments: list[str], unbuffered: str) -> None:
    environment = {
        **os.environ,
        "HEADRACE_SERVER": fake.target,
        "PYTHONUNBUFFERED": unbuffered,
    }
    with Path("/dev/full").open("w") as full:
        ended = headrace(*arguments, stdout=full, env=environment)
    message = "error: cannot write to the standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, message)


def test_a_closed_output_is_told_before_anything_is_asked(fake: Fake) -> None:
    environment = {**os.environ, "HEADRACE_SERVER": fake.target}
    script = f'"{sys.executable}" -c "from headrace.program import main; main()" devices --json >&-'
    ended = subprocess.run(
        ["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    error = json.loads(ended.stderr)["error"]
    assert error["code"] == "FAILED_PRECONDITION"
    assert error["message"] == "cannot write to the standard output: it is closed"
    assert not fake.calls


def test_a_bug_shows_no_traceback_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise LookupError("lost")

    def told() -> str:
        with pytest.raises(SystemExit) as stopped:
            program.main()
        return str(stopped.value.code)

    monkeypatch.setattr(console, "Client", broken)
    monkeypatch.setattr(sys, "argv", ["headrace", "devices"])
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    assert told().startswith("error: TypeError: ")
    monkeypatch.setattr(sys, "argv", ["headrace", "devices", "--json"])
    assert json.loads(told())["error"]["code"] == "INTERNAL"
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    with pytest.raises(TypeError):
        program.main()


def test_tables_are_drawn_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.print_table(("A", "B"), [("[red]x", "y")], what="things")
    assert "[red]x" in capsys.readouterr().out
    console.print_table(("A", "B"), [], what="things")
    assert capsys.readouterr().out == "no things\n"


def test_a_name_that_is_wider_than_the_terminal_is_folded_and_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    name = "/model/encoder/layer.11/attention/self/query/MatMul_output_0" * 2
    console.print_table(("LAYER", "DEVICE"), [(name, "CPU")], what="layers")
    told = capsys.readouterr().out
    assert "…" not in told
    assert name in "".join(line.replace("CPU", "").strip() for line in told.splitlines())


@pytest.mark.parametrize("where", ["before", "after"])
def test_common_options_stand_before_or_after_the_command(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("HEADRACE_SERVER", "127.0.0.1:1")
    common = ["--server", fake.target, "--json"]
    arguments = [*common, "devices"] if where == "before" else ["devices", *common]
    up, _ = json_of(CliRunner().invoke(make_app(arguments), arguments))
    assert up["name"] == "CPU"


def test_an_option_after_the_command_wins(fake: Fake) -> None:
    arguments = ["--server", "127.0.0.1:1", "devices", "--server", fake.target]
    assert CliRunner().invoke(make_app(arguments), arguments).exit_code == 0


def test_an_error_is_json_where_the_option_stands_before_the_command() -> None:
    arguments = ["--json", "--server", "localhost:99999", "devices"]
    result = CliRunner().invoke(make_app(arguments), arguments)
    assert result.exit_code == 1
    assert json.loads(result.stderr)["error"]["code"] == "INVALID_ARGUMENT"


@pytest.mark.long
def test_bash_completes_commands_and_options() -> None:
    headrace = Path(sys.executable).with_name("headrace")
    script = f'eval "$(_HEADRACE_COMPLETE=source_bash {headrace})"\n'
    for words in ("headrace dev", "headrace load --rep"):
        script += (
            f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}\n"
            f'_headrace_completion {headrace}; printf "%s\\n" "${{COMPREPLY[@]}}" | sort\n'
        )
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["devices", "--replace", "--repository"], ended.stderr


def test_what_a_client_sets_is_named_as_the_command_line_has_it() -> None:
    error = errors.AlreadyExists(
        ErrorDetails(
            grpc.StatusCode.ALREADY_EXISTS, "network 'm' exists; unload it, or set replace"
        )
    )
    assert console._explain(error) == "network 'm' exists; unload it, or add --replace"


def test_progress_is_shown_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with console.progress("loading", quiet=False) as shown:
        assert shown is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.progress("loading", quiet=True) as shown:
        assert shown is None
    made = []

    class Noted(Progress):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

    monkeypatch.setattr(console, "Progress", Noted)

    def bars() -> list[tuple[str, Any, str]]:
        tasks = [task for task in made[0].tasks if task.visible]
        return [(task.description, task.total, task.fields["size"]) for task in tasks]

    with console.progress("compiling", quiet=False) as shown:
        assert shown is not None
        shown(1024, 2048)
        assert bars() == [("uploading", 2048, "1 KiB of 2 KiB")]
        shown(2048, 2048)
        assert bars() == [("compiling", None, "")]  # which nobody takes for done
    assert capsys.readouterr().out == ""
