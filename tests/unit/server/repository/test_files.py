"""The model repository: which networks it has, how they are loaded, and what it refuses."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    InvalidModel,
    NotFound,
)
from headrace.runtime.intake.limits import Limits
from headrace.runtime.transform.options import InputOptions, LoadRequest, NetworkOptions, Reference
from headrace.server.repository.files import RepositoryFiles
from headrace.testing import networks
from headrace.testing.case import parse
from tests.support.open_inference import with_external_weight


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with one network, `add`, on its own."""
    folder = tmp_path / "repository"
    (folder / "add").mkdir(parents=True)
    (folder / "add" / "model.onnx").write_bytes(networks.add().model.SerializeToString())
    return folder


@pytest.fixture
def repository(folder: Path) -> RepositoryFiles:
    return RepositoryFiles(folder, Limits())


def request_of(repository: RepositoryFiles, name: str) -> LoadRequest:
    return repository.describe(name, repository.find(name)).request


def test_every_folder_is_a_network_and_a_file_is_not(
    folder: Path, repository: RepositoryFiles
) -> None:
    (folder / "notes.txt").touch()
    (folder / "no-model").mkdir()
    (folder / ".new").mkdir()
    assert list(repository.look()) == ["add", "no-model"]
    with pytest.raises(FailedPrecondition, match="the folder is empty"):
        repository.newest("no-model")


def test_a_network_without_a_description_is_loaded_on_the_cpu_as_it_is(
    repository: RepositoryFiles,
) -> None:
    request = request_of(repository, "add")
    assert (str(request.device), request.config, request.origin) == ("CPU", {}, "repository")


def test_a_description_says_device_configuration_and_preprocessing(
    folder: Path, repository: RepositoryFiles
) -> None:
    (folder / "add" / "network.toml").write_text("""
        device = "HETERO:CPU,TEMPLATE"
        [config]
        NUM_STREAMS = 2
        PERF_COUNT = true
        EXECUTION_TIMEOUT = 1.5
        [inputs.x]
        dtype = "uint8"
        layout = "NC"
        mean = [1, 2.5]
        [outputs.z]
        dtype = "float64"
        [affinities]
        z = "CPU"
    """)
    request = request_of(repository, "add")
    assert str(request.device) == "HETERO:CPU,TEMPLATE"
    expected = {"NUM_STREAMS": "2", "PERF_COUNT": "YES", "EXECUTION_TIMEOUT": "1.5"}
    assert request.config == expected
    x = request.options.inputs["x"]
    assert (x.dtype, x.layout, x.mean) == (ir.DataType.UINT8, "NC", (1.0, 2.5))
    assert request.options.outputs["z"].dtype is ir.DataType.DOUBLE
    assert request.options.affinities == {"z": "CPU"}


@pytest.mark.parametrize(
    ("description", "error", "field"),
    [
        ("device = [", InvalidArgument, "network.toml"),
        ("devcie = 'CPU'", NotFound, "network.toml"),
        ("device = 5", InvalidArgument, "network.toml: device"),
        ("config = 3", InvalidArgument, "network.toml: config"),
        ("inputs = 'x'", InvalidArgument, "network.toml: inputs"),
        ("inputs.x = 'uint8'", InvalidArgument, "network.toml: inputs.x"),
        ("inputs.x.dytpe = 'uint8'", NotFound, "network.toml: inputs.x"),
        ("inputs.x.dtype = 'uint9'", NotFound, "network.toml: inputs.x.dtype"),
        ("inputs.x.layout = 5", InvalidArgument, "network.toml: inputs.x.layout"),
        ("inputs.x.network_layout = []", InvalidArgument, "network.toml: inputs.x.network_layout"),
        ("inputs.x.resize = true", InvalidArgument, "network.toml: inputs.x.resize"),
        ("inputs.x.mean = 5", InvalidArgument, "network.toml: inputs.x.mean"),
        ("inputs.x.scale = ['a']", InvalidArgument, "network.toml: inputs.x.scale"),
        (f"inputs.x.scale = [1{400 * '0'}]", InvalidArgument, "network.toml"),
        ("outputs.z.layout = 5", InvalidArgument, "network.toml: outputs.z.layout"),
        ("affinities = 5", InvalidArgument, "network.toml: affinities"),
    ],
)
def test_a_description_that_cannot_be_names_the_key_at_fault(
    folder: Path,
    repository: RepositoryFiles,
    description: str,
    error: type[HeadraceError],
    field: str,
) -> None:
    (folder / "add" / "network.toml").write_text(description)
    with pytest.raises(error) as caught:
        request_of(repository, "add")
    assert caught.value.field == field


def test_a_description_that_is_no_text_is_refused(
    folder: Path, repository: RepositoryFiles
) -> None:
    (folder / "add" / "network.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        request_of(repository, "add")


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nothing", "link to itself", "large"])
def test_a_description_that_is_there_and_no_file_is_refused_and_not_left_out(
    folder: Path, repository: RepositoryFiles, kind: str
) -> None:
    path = folder / "add" / "network.toml"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "large":
            path.write_bytes(b"#" * (2**20 + 1))
        case _:
            path.symlink_to(path if kind == "link to itself" else folder / "nothing")
    with pytest.raises(FailedPrecondition, match="cannot be read") as caught:
        request_of(repository, "add")
    assert caught.value.field == "network.toml"


def test_a_network_that_is_not_there_is_not_found_and_a_near_one_offered(
    repository: RepositoryFiles,
) -> None:
    with pytest.raises(NotFound, match="did you mean 'add'"):
        repository.newest("adn")


@pytest.mark.parametrize("name", ["..", "../repository/add", "add/../add", "/etc", ""])
def test_a_name_that_is_a_path_is_refused(repository: RepositoryFiles, name: str) -> None:
    with pytest.raises(InvalidArgument):
        repository.newest(name)


def test_a_link_may_lead_to_another_network_of_the_repository(
    folder: Path, repository: RepositoryFiles
) -> None:
    (folder / "plus").symlink_to(folder / "add")
    assert list(repository.look()) == ["add", "plus"]
    assert repository.newest("plus").digest == repository.newest("add").digest


def with_weights(place: Path, weights: Path) -> None:
    """A model at `place` and its external data at `weights`, with a link to it beside the model."""
    place.mkdir(parents=True)
    model = with_external_weight(networks.add().model, "w.bin")
    (place / "model.onnx").write_bytes(model.SerializeToString())
    weights.parent.mkdir(exist_ok=True)
    weights.write_bytes(np.ones((2, 3), np.float32).tobytes())
    if not (place / "w.bin").exists():
        (place / "w.bin").symlink_to(weights)


def test_external_data_may_be_a_link_inside_the_network_and_no_further(
    folder: Path, repository: RepositoryFiles
) -> None:
    with_weights(folder / "inside" / "1", folder / "inside" / "blobs" / "w")
    assert repository.newest("inside").weight_bytes == 24
    with_weights(folder / "outside" / "1", folder / ".store" / "w")
    with pytest.raises(InvalidModel, match="leads out of the model's folder"):
        repository.newest("outside")


def test_a_version_that_is_a_link_finds_its_external_data_where_it_leads(
    folder: Path, repository: RepositoryFiles
) -> None:
    with_weights(folder / "whole" / "1", folder / "whole" / "1" / "w.bin")
    (folder / "other").mkdir()
    (folder / "other" / "2").symlink_to("../whole/1")
    assert repository.newest("other").weight_bytes == 24


def test_a_link_that_leads_out_of_the_repository_is_refused_and_said_to_be_one(
    folder: Path, repository: RepositoryFiles
) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "model.onnx").write_bytes((folder / "add" / "model.onnx").read_bytes())
    (folder / "out").symlink_to(outside)
    with pytest.raises(FailedPrecondition, match="'out' is a link that leads out"):
        request_of(repository, "out")


def test_a_link_that_leads_to_itself_says_so(folder: Path, repository: RepositoryFiles) -> None:
    (folder / "loop").symlink_to(folder / "loop")
    assert list(repository.look()) == ["add", "loop"]
    with pytest.raises(FailedPrecondition, match="leads nowhere"):
        request_of(repository, "loop")


def test_a_model_may_be_a_link_to_another_place_of_the_repository(
    folder: Path, repository: RepositoryFiles
) -> None:
    original = repository.newest("add").digest
    store = folder / ".store"
    store.mkdir()
    (folder / "add" / "model.onnx").rename(store / "model")
    (folder / "add" / "model.onnx").symlink_to("../.store/model")
    assert repository.newest("add").digest == original


def test_a_server_without_a_repository_names_the_option() -> None:
    repository = RepositoryFiles(None, Limits())
    assert list(repository.look()) == []
    with pytest.raises(FailedPrecondition, match="--model-repository"):
        repository.newest("add")


def denied(*_: object, **__: object) -> NoReturn:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_what_a_client_says_beside_a_network_s_name_goes_before_its_description(
    folder: Path, repository: RepositoryFiles
) -> None:
    (folder / "add" / "network.toml").write_text("""
        device = "TEMPLATE"
        [config]
        NUM_STREAMS = 2
        PERF_COUNT = true
        [inputs.x]
        mean = [1.0]
        [inputs.y]
        mean = [2.0]
    """)
    said = Reference(
        "add", "CPU", {"NUM_STREAMS": "4"}, NetworkOptions({"x": InputOptions(mean=(3.0,))})
    )
    request = repository.load_request("mine", said)
    assert (request.name, str(request.device), request.reference) == ("mine", "CPU", said)
    assert request.config == {"NUM_STREAMS": "4", "PERF_COUNT": "YES"}
    assert {name: each.mean for name, each in request.options.inputs.items()} == {
        "x": (3.0,),
        "y": (2.0,),
    }
    assert str(repository.load_request("mine", Reference("add")).device) == "TEMPLATE"


def test_a_network_that_may_not_be_looked_at_says_why(
    repository: RepositoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(FailedPrecondition, match="cannot be read: Permission denied"):
        repository.load_request("mine", Reference("add"))


def test_a_folder_that_may_not_be_entered_hides_no_other(
    folder: Path, repository: RepositoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "secret").mkdir()
    scandir = os.scandir
    monkeypatch.setattr(
        os, "scandir", lambda path: denied() if "secret" in str(path) else scandir(path)
    )
    found = repository.look()
    assert {name: (each.fault, each.nameless) for name, each in found.items()} == {
        "add": ("", False),
        "secret": ("cannot be read: Permission denied", False),
    }


def test_a_description_that_may_not_be_read_is_named(
    folder: Path, repository: RepositoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "add" / "network.toml").touch()
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(FailedPrecondition, match="cannot be read: Permission") as caught:
        request_of(repository, "add")
    assert caught.value.field == "network.toml"


ROWS = parse("rows (float[n,2] x) => (float[n,2] y) { y = Neg(x) }").SerializeToString()


def configured(folder: Path, config: str, *files: str) -> None:
    """A network `m` with Triton's configuration, and its model in `files`."""
    for name in files:
        path = folder / "m" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ROWS)
    (folder / "m").mkdir(exist_ok=True)
    (folder / "m" / "config.pbtxt").write_text(config)


def test_a_configuration_of_triton_s_says_how_to_load(
    folder: Path, repository: RepositoryFiles
) -> None:
    config = """
        name: "m"
        platform: "onnxruntime_onnx"
        max_batch_size: 8
        version_policy { all {} }
        input { name: "x" data_type: TYPE_FP32 dims: [ 1, 2 ] reshape { shape: 2 } }
        output { name: "y" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" }
        instance_group { count: 2 kind: KIND_CPU }
        dynamic_batching { preferred_batch_size: 4 }
        parameters { key: "PERF_COUNT" value { string_value: "YES" } }
    """
    configured(folder, config, "1/model.onnx", "2/model.onnx")
    (folder / "m" / "labels.txt").write_text("cat\ndog")
    found = repository.find("m")
    description = repository.describe("m", found)
    request = description.request
    assert str(request.device) == "BATCH:CPU(4)"
    assert request.config == {"NUM_STREAMS": "2", "PERF_COUNT": "YES"}
    assert request.options.inputs == {"x": InputOptions(shape=(None, 1, 2))}
    assert request.presentation.max_batch_size == 8
    assert request.presentation.labels == {"y": ("cat", "dog")}
    assert description.policy.choose(found.versions) == {"1", "2"}
    assert repository.network(found, "2").inputs[0].name == "x"


def test_the_own_description_comes_before_triton_s(
    folder: Path, repository: RepositoryFiles
) -> None:
    config = """
        max_batch_size: 8
        version_policy { all {} }
        instance_group { count: 2 kind: KIND_GPU }
        dynamic_batching {}
        parameters { key: "PERF_COUNT" value { string_value: "YES" } }
    """
    configured(folder, config, "1/model.onnx", "2/model.onnx")
    (folder / "m" / "network.toml").write_text("""
        device = "OPENVINO"
        version_policy = {latest = 1}
        [config]
        NUM_STREAMS = 1
    """)
    found = repository.find("m")
    description = repository.describe("m", found)
    request = description.request
    assert str(request.device) == "BATCH:OPENVINO(8)"
    assert request.config == {"NUM_STREAMS": "1", "PERF_COUNT": "YES"}
    assert request.presentation.max_batch_size == 8
    assert description.policy.choose(found.versions) == {"2"}


@pytest.mark.parametrize(
    ("config", "file"),
    [
        ('default_model_filename: "net.onnx"', "1/net.onnx"),
        ('default_model_filename: "net.onnx"', "net.onnx"),
        ("", "1/model.onnx/model.onnx"),
        ('default_model_filename: "deep/net.onnx"', "1/deep/net.onnx"),
    ],
)
def test_a_configuration_of_triton_s_may_name_the_model(
    folder: Path, repository: RepositoryFiles, config: str, file: str
) -> None:
    configured(folder, config, file)
    assert repository.newest("m").inputs[0].name == "x"


def test_the_named_model_is_taken_where_the_usual_one_lies_too(
    folder: Path, repository: RepositoryFiles
) -> None:
    configured(folder, 'default_model_filename: "net.onnx"', "1/net.onnx")
    (folder / "m" / "1" / "model.onnx").write_bytes(networks.add().model.SerializeToString())
    assert [port.name for port in repository.newest("m").inputs] == ["x"]


@pytest.mark.parametrize(
    ("config", "files", "why"),
    [
        ("", [], "there is no model.onnx, and config.pbtxt describes no ensemble"),
        ("", ["1/net.onnx"], "there is no model.onnx"),
        ('default_model_filename: "../1/net.onnx"', ["1/net.onnx", "2/a"], "there is no"),
        ('platform: "tensorrt_plan"', ["1/model.onnx"], "is 'tensorrt_plan'; headrace runs ONNX"),
        ('backend: "python"', ["1/model.py"], "is 'python'; headrace runs ONNX"),
        ("optimization { graph { level: 1 } }", ["1/model.onnx"], "optimization.graph has no"),
        ('name: "other"', ["1/model.onnx"], "name is 'other'"),
        ('input { name: "z" }', ["1/model.onnx"], "the model has no input 'z'"),
        ('output { name: "y" label_filename: "../a" }', ["1/model.onnx"], "is not a file in the"),
        ("a: [", ["1/model.onnx"], "is not a ModelConfig as text"),
    ],
)
def test_what_a_configuration_of_triton_s_cannot_have_is_told(
    folder: Path, repository: RepositoryFiles, config: str, files: list[str], why: str
) -> None:
    configured(folder, config, *files)
    with pytest.raises(HeadraceError, match=re.escape(why)) as caught:
        repository.newest("m")
    assert str(caught.value.field).startswith("config.pbtxt")


ENSEMBLE = """
    platform: "ensemble"
    input { name: "a" } output { name: "b" }
    ensemble_scheduling { step {
        model_name: "add"
        input_map { key: "x" value: "a" } output_map { key: "z" value: "b" } } }
"""


def test_an_ensemble_has_the_versions_of_its_folders(
    folder: Path, repository: RepositoryFiles
) -> None:
    configured(folder, ENSEMBLE)
    for version in ("1", "3"):
        (folder / "m" / version).mkdir()
    assert str(request_of(repository, "m").device) == "PIPELINE"
    assert sorted(repository.find("m").versions) == ["1", "3"]
    assert [port.name for port in repository.newest("m").inputs] == ["a"]


def test_an_ensemble_beside_a_model_is_refused(folder: Path, repository: RepositoryFiles) -> None:
    configured(folder, ENSEMBLE, "1/model.onnx")
    with pytest.raises(FailedPrecondition, match="there is a model too; remove one of them"):
        request_of(repository, "m")
