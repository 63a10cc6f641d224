"""The config.json of OpenVINO Model Server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.runtime.intake.limits import Limits
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import PipelineDescription
from headrace.runtime.pipelines.order import plan_of
from headrace.runtime.transform.options import InputOptions
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.ovms import OvmsModel, OvmsNetworks, read_networks
from headrace.testing.case import parse

MODEL = parse("dummy (float[1,10] b) => (float[1,10] a) { a = Neg(b) }").SerializeToString()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "dummy" / "1"
    folder.mkdir(parents=True)
    (folder / "dummy.onnx").write_bytes(MODEL)
    return tmp_path / "models"


def read(root: Path, **facts: Any) -> OvmsNetworks:
    return read_networks(json.dumps(facts).encode(), root, root)


def model(root: Path, **config: Any) -> OvmsModel:
    config = {"name": "dummy", "base_path": "dummy", **config}
    found = read(root, model_config_list=[{"config": config}])
    if found.faults:
        raise InvalidArgument(found.faults["dummy"])
    return found.models["dummy"]


def source(node: str, item: str) -> dict[str, str]:
    return {"node_name": node, "data_item": item}


def node(name: str, takes: str, item: str, **more: Any) -> dict[str, Any]:
    """A node of the model `dummy`, which takes the item of another node."""
    return {
        "name": name,
        "model_name": "dummy",
        "type": "DL model",
        "inputs": [{"b": source(takes, item)}],
        "outputs": [{"data_item": "a", "alias": "out"}],
        **more,
    }


def pipeline(root: Path, *nodes: Any, last: str, **more: Any) -> PipelineDescription:
    facts = {
        "name": "p",
        "inputs": ["in"],
        "nodes": list(nodes),
        "outputs": [{"label": source(last, "out")}],
        **more,
    }
    found = read(root, pipeline_config_list=[facts])
    if found.faults:
        raise InvalidArgument(found.faults["p"])
    return found.pipelines["p"].description


def axes(description: PipelineDescription) -> dict[str, dict[str, tuple[int | None, ...]]]:
    """The axes that the inputs of each step lose."""
    return {step.name: dict(step.axes) for step in plan_of(description).steps}


@pytest.mark.parametrize(
    ("target", "device"),
    [
        ("CPU", "OPENVINO"),
        ("GPU", "OPENVINO.GPU"),
        ("GPU.1", "OPENVINO.GPU.1"),
        ("NPU", "OPENVINO.NPU"),
        ("AUTO", "AUTO"),
        ("HETERO:GPU,CPU", "HETERO:OPENVINO.GPU,OPENVINO"),
        ("AUTO:NPU,CPU", "AUTO:OPENVINO.NPU,OPENVINO"),
    ],
)
def test_the_devices_are_openvino_s(root: Path, target: str, device: str) -> None:
    assert str(model(root, target_device=target).settings.on("CPU")) == device


def test_a_model_is_loaded_as_its_configuration_says(root: Path) -> None:
    found = model(
        root,
        nireq=4,
        plugin_config={"PERFORMANCE_HINT": "LATENCY", "CPU_THREADS_NUM": 2},
        model_version_policy={"specific": {"versions": [1, 3]}},
        layout={"b": "NC:CN"},
        allow_cache=False,
    )
    settings = found.settings
    assert settings.device is None
    assert settings.config == {
        "NUM_STREAMS": "4",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": "2",
        "CACHE_DIR": "",
    }
    assert settings.options.inputs == {"b": InputOptions(layout="NC", network_layout="CN")}
    assert settings.policy is not None
    assert settings.policy.choose(["1", "2", "3"]) == {"1", "3"}
    assert found.path == root / "dummy"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, ""),
        ({"batch_size": "auto", "shape": "auto"}, ""),
        ({"batch_size": 1, "shape": "(1, 10)"}, ""),
        ({"batch_size": "1", "shape": {"b": "(1,5:20)"}}, ""),
        ({"batch_size": 4}, r"has the shape \[1, 10\], not \[4, -1\]"),
        ({"shape": "(1,11)"}, r"not \[1, 11\]"),
        ({"shape": {"c": "(1,10)"}}, "no input of the model: 'c'"),
    ],
)
def test_sizes_are_those_that_the_model_takes(root: Path, config: Any, why: str) -> None:
    network = Network.from_bytes(MODEL)
    found = model(root, **config)
    if not why:
        found.check(network)
        return
    with pytest.raises(InvalidArgument, match=why) as caught:
        found.check(network)
    assert caught.value.field == "config.json: model 'dummy'"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"base_path": "../elsewhere"}, "lies outside of the model repository"),
        ({"base_path": "/etc"}, "lies outside of the model repository"),
        ({"base_path": ""}, "base_path is missing"),
        ({"mean": "[1]"}, "mean has no meaning here; write it for the input in network.toml"),
        ({"stateful": True}, r"stateful has no meaning here; write \[states\]"),
        ({"nirek": 4}, "unknown key 'nirek'; did you mean 'nireq'"),
        ({"layout": "NHWC"}, "layout must name its input"),
        ({"layout": {"b": "N...C"}}, "write it as NHWC:NCHW"),
        ({"batch_size": "many"}, "batch_size is 'many'"),
        ({"shape": "1,10"}, "shape is '1,10'"),
        ({"plugin_config": {"A": []}}, "plugin_config.A must be"),
        ({"model_version_policy": {"newest": 1}}, "is not a version policy"),
        ({"nireq": -1}, "nireq must be a whole number"),
    ],
)
def test_what_a_model_cannot_have_is_its_own_fault(root: Path, config: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        model(root, **config)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"model_config_lst": []}, "did you mean 'model_config_list'"),
        ({"mediapipe_config_list": [{"name": "a"}]}, "mediapipe_config_list has no meaning here"),
        ({"custom_node_library_config_list": [{}]}, "custom_node_library_config_list has no"),
        ({"monitoring": {"metrics": {"enable": False}}}, "metrics are always on"),
        ({"model_config_list": [{"config": {"name": "a b"}}]}, "'a b' is not a network name"),
        ({"model_config_list": [{"config": {"name": "a"}}] * 2}, "'a' is there twice"),
        ({"model_config_list": {}}, "model_config_list must be a list"),
    ],
)
def test_what_the_file_cannot_have_is_refused(root: Path, facts: Any, why: str) -> None:
    with pytest.raises(HeadraceError, match=why):
        read(root, **facts)


def test_what_is_no_json_is_refused(root: Path) -> None:
    for data in (b"", b"{", b"[" * 100_000):
        with pytest.raises(InvalidArgument):
            read_networks(data, root, root)


def test_metrics_that_are_asked_for_are_there(root: Path) -> None:
    metrics = {"enable": True, "metrics_list": ["ovms_streams"]}
    assert not list(read(root, monitoring={"metrics": metrics}).names())


def test_nodes_are_steps_and_aliases_are_tensors(root: Path) -> None:
    first = node("first", "request", "in", version=3)
    found = pipeline(root, first, node("second", "first", "out"), last="second")
    plan = plan_of(found)
    assert [(step.name, step.network, step.version) for step in plan.steps] == [
        ("first", "dummy", "3"),
        ("second", "dummy", ""),
    ]
    assert plan.steps[1].inputs == {"b": "first/out"}
    assert (plan.inputs, plan.outputs) == (("in",), ("label",))
    assert axes(found) == {"first": {}, "second": {}}


def test_the_nodes_behind_one_that_splits_take_rows_until_one_gathers(root: Path) -> None:
    found = pipeline(
        root,
        node("last", "second", "out", gather_from_node="split"),
        node("second", "first", "out"),
        node("first", "split", "out"),
        node("split", "request", "in", demultiply_count=3),
        last="last",
    )
    assert axes(found) == {
        "split": {},
        "first": {"b": (3,)},
        "second": {"b": (3,)},
        "last": {},
    }


def test_nodes_may_be_in_any_order(root: Path) -> None:
    chain = [node("n0", "request", "in")]
    chain += [node(f"n{number}", f"n{number - 1}", "out") for number in range(1, 256)]
    found = pipeline(root, *reversed(chain), last="n255", demultiply_count=2)
    assert axes(found) == {f"n{number}": {"b": (2,)} for number in range(256)}


def test_rows_that_different_nodes_have_split_do_not_fit_together(root: Path) -> None:
    both = node("both", "left", "out")
    both["inputs"].append({"c": source("right", "out")})
    left, right = (node(name, "request", "in", demultiply_count=2) for name in ("left", "right"))
    with pytest.raises(InvalidArgument, match="rows that different nodes have split"):
        pipeline(root, left, right, both, last="both")


@pytest.mark.parametrize("count", [0, -1])
def test_a_request_may_be_split_in_any_number_of_rows(root: Path, count: int) -> None:
    found = pipeline(root, node("n", "request", "in"), last="n", demultiply_count=count)
    assert axes(found) == {"n": {"b": (None,)}}


def test_nodes_that_split_may_follow_each_other(root: Path) -> None:
    found = pipeline(
        root,
        node("outer", "request", "in", demultiply_count=3),
        node("inner", "outer", "out", demultiply_count=-1),
        node("row", "inner", "out"),
        node("some", "row", "out", gather_from_node="inner"),
        node("all", "some", "out", gather_from_node="outer"),
        last="all",
    )
    assert axes(found) == {
        "outer": {},
        "inner": {"b": (3,)},
        "row": {"b": (3, None)},
        "some": {"b": (3,)},
        "all": {},
    }


def test_inputs_that_no_node_takes_are_a_fault_of_the_entry(root: Path) -> None:
    found = pipeline(root, node("n", "request", "in"), last="n", inputs=["in", "other"])
    with pytest.raises(InvalidArgument, match="no step takes the input 'other'") as caught:
        plan_of(found)
    assert caught.value.field == "config.json: pipeline 'p': inputs"


SPLIT = {"demultiply_count": 2}


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("n", "other", "out")], "unknown node 'other'"),
        ([node("n", "n", "out")], "wait for each other"),
        ([node("n", "request", "in", gather_from_node="m")], "which has split none of its inputs"),
        (
            [
                node("m", "request", "in", **SPLIT),
                node("o", "m", "out", **SPLIT),
                node("n", "o", "out", gather_from_node="m"),
            ],
            "gathers 'm' before 'o'",
        ),
        ([node("n", "request", "in", type="custom")], "node 'n' is a custom node"),
        ([node("n", "request", "in", library_name="lib")], "there are no custom nodes"),
        ([node("n", "request", "in", demultiply_count=-2)], "demultiply_count must be"),
        ([node("n", "request", "in")] * 2, "there are two nodes 'n'"),
        ([node("n", "request", "in", demultiply=2)], "did you mean 'demultiply_count'"),
        ([node("n", "request", "in")] * 257, "more than 256 nodes"),
    ],
)
def test_what_a_pipeline_cannot_have_is_its_own_fault(root: Path, nodes: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        pipeline(root, *nodes, last="n")


def files(root: Path, **facts: Any) -> RepositoryFiles:
    config = root.parent / "config.json"
    config.write_text(json.dumps(facts))
    return RepositoryFiles(root, Limits(), config)


def test_the_networks_of_the_file_are_those_of_the_repository(root: Path) -> None:
    (root / "other" / "1").mkdir(parents=True)
    facts = {"name": "p", "inputs": ["in"], "nodes": [node("n", "request", "in")]}
    facts["outputs"] = [{"label": source("n", "out")}]
    repository = files(
        root,
        model_config_list=[
            {"config": {"name": "one", "base_path": "models/dummy", "target_device": "CPU"}},
            {"config": {"name": "two", "base_path": "models/dummy", "mean": "1"}},
            {"config": {"name": "three", "base_path": "models/none"}},
        ],
        pipeline_config_list=[facts],
    )
    found = repository.look()
    assert sorted(found) == ["one", "p", "three", "two"]
    assert "mean has no meaning here" in found["two"].fault
    assert "is not a folder" in found["three"].fault
    request = repository.describe("one", found["one"]).request
    assert (request.name, str(request.device)) == ("one", "OPENVINO")
    assert [port.name for port in repository.newest("one").inputs] == ["b"]
    assert str(repository.describe("p", found["p"]).request.device) == "PIPELINE"
    assert [port.name for port in repository.newest("p").inputs] == ["in"]


def test_what_changes_in_the_file_changes_the_networks_that_it_is_about(root: Path) -> None:
    def config(count: int) -> dict[str, Any]:
        return {
            "model_config_list": [
                {"config": {"name": "one", "base_path": "models/dummy", "nireq": count}},
                {"config": {"name": "two", "base_path": "models/dummy"}},
            ]
        }

    repository = files(root, **config(1))
    before = repository.look()
    files(root, **config(12))
    after = repository.look()
    assert after["two"] == before["two"]
    assert after["one"].description.signature != before["one"].description.signature
    assert repository.describe("one", after["one"]).request.config == {"NUM_STREAMS": "12"}


def test_a_file_that_has_become_wrong_changes_nothing(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = files(
        root, model_config_list=[{"config": {"name": "one", "base_path": "models/dummy"}}]
    )
    before = repository.look()
    (root.parent / "config.json").write_text("{")
    assert repository.look() == before
    assert repository.look() == before
    (root.parent / "config.json").unlink()
    assert repository.look() == before
    assert [each.levelname for each in caplog.records] == ["ERROR", "ERROR"]


def test_a_file_that_is_wrong_from_the_start_is_refused(root: Path) -> None:
    with pytest.raises(HeadraceError, match="did you mean"):
        files(root, model_config_lists=[]).look()
