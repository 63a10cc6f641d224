"""What a look at a model repository finds: layouts, links, and files that are being written."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from headrace.server.repository.folder import NetworkFolder, look, look_at


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    return root


def put(*parts: object, data: bytes = b"model") -> Path:
    path = Path(*map(str, parts))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def found(root: Path, name: str = "m") -> NetworkFolder:
    network = look_at(root, name)
    assert network is not None
    return network


def later(path: Path) -> None:
    """A change of the file's state without a write, which is certainly later than its last one."""
    modified = path.stat().st_mtime_ns - 10**9
    os.utime(path, ns=(modified, modified))


def test_a_model_without_versions_is_version_1(root: Path) -> None:
    put(root, "m", "model.onnx")
    assert {name: list(each.versions) for name, each in look(root).items()} == {"m": ["1"]}


def test_versions_are_folders_with_numbers_and_a_model(root: Path) -> None:
    for version in ("1", "2", "10", "0", "01", "v3", "1.0"):
        put(root, "m", version, "model.onnx")
    (root / "m" / "4").mkdir()
    assert sorted(found(root).versions) == ["1", "10", "2"]


def test_a_configuration_of_triton_s_may_name_the_model_or_describe_an_ensemble(root: Path) -> None:
    put(root, "m", "config.pbtxt")
    (root / "m" / "3").mkdir()
    assert {name: each.source for name, each in found(root).versions.items()} == {
        "3": "config.pbtxt"
    }
    put(root, "m", "2", "net.onnx")
    put(root, "m", "1", "model.onnx")
    assert {name: each.source for name, each in found(root).versions.items()} == {
        "1": "model.onnx",
        "2": "config.pbtxt",
    }


def test_a_version_changes_with_the_configuration_of_triton_s(root: Path) -> None:
    put(root, "m", "1", "model.onnx")
    config = put(root, "m", "config.pbtxt")
    before = found(root).versions["1"].signature
    config.write_bytes(b"longer than before")
    assert found(root).versions["1"].signature != before


def test_a_model_may_lie_in_a_folder_of_its_name(root: Path) -> None:
    put(root, "m", "1", "model.onnx", "model.onnx")
    version = found(root).versions["1"]
    assert (version.source, version.fault) == ("model.onnx/model.onnx", "")
    put(root.parent, "outside", "model.onnx")
    shutil.rmtree(root / "m" / "1" / "model.onnx")
    (root / "m" / "1" / "model.onnx").symlink_to(root.parent / "outside")
    assert "leads out" in found(root).versions["1"].fault


def test_two_models_for_version_1_are_a_fault(root: Path) -> None:
    put(root, "m", "model.onnx")
    put(root, "m", "1", "model.onnx")
    assert "both model.onnx and 1/model.onnx" in found(root).fault


def test_a_folder_that_is_no_network_name_says_so(root: Path) -> None:
    put(root, "my model", "model.onnx")
    network = look(root)["my model"]
    assert (network.nameless, network.versions) == (True, {})
    assert "not a network name" in network.fault


@pytest.mark.parametrize("what", ["m", "m/2", "m/2/model.onnx", "m/network.toml"])
def test_a_link_that_leads_out_is_a_fault(root: Path, tmp_path: Path, what: str) -> None:
    put(root, "m", "1", "model.onnx")
    put(root, "m", "2", "model.onnx")
    put(root, "m", "network.toml", data=b"")
    (root / what).rename(tmp_path / "outside")
    (root / what).symlink_to(tmp_path / "outside")
    network = found(root)
    broken = {version: each.fault for version, each in network.versions.items() if each.fault}
    assert "leads out of the model repository" in (network.fault or broken["2"])


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        (["net.onnx"], "has no model.onnx; found net.onnx: rename the model to model.onnx"),
        (["a.txt", "b/c.onnx"], "found b/c.onnx: rename the model"),
        (["0/model.onnx"], "found 0/model.onnx: a version is a number from 1"),
        (["v1/model.onnx"], "found v1/model.onnx: a version is a number from 1"),
        (["readme.txt"], "found readme.txt: the server loads ONNX models only"),
        ([f"{number}.bin" for number in range(5000)], ".bin, …: the server loads"),
        (["1/.keep"], "the folder is empty"),
        ([b"\xff.onnx"], "found \N{REPLACEMENT CHARACTER}.onnx"),
    ],
)
def test_a_folder_without_a_model_says_what_is_there_instead(
    root: Path, files: list[str | bytes], fault: str
) -> None:
    for file in files:
        put(root, "m", os.fsdecode(file))
    network = look(root)["m"]
    assert fault in network.fault
    assert (network.bare, network.versions) == (True, {})


def test_a_model_beside_the_folders_is_told(root: Path) -> None:
    put(root, "flat.onnx")
    put(root, "readme.md")
    assert {name: each.fault for name, each in look(root).items()} == {
        "flat.onnx": "is a file; move it to flat/model.onnx"
    }


@pytest.mark.parametrize("kind", ["misnamed", "pipe", "folder", "link", "loop", "forbidden"])
def test_a_version_that_cannot_be_read_is_told_and_not_passed_over(
    root: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "m", "1", "model.onnx")
    put(root, "m", "2", "net.onnx" if kind == "misnamed" else "notes.txt")
    model = root / "m" / "2" / "model.onnx"
    match kind:
        case "pipe":
            os.mkfifo(model)
        case "folder":
            model.mkdir()
        case "link":
            model.symlink_to("nothing")
        case "loop":
            shutil.rmtree(model.parent)
            model.parent.symlink_to(model.parent)
        case "forbidden":
            scandir = os.scandir

            def denied(path: str) -> object:
                if str(path).endswith("/2"):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                return scandir(path)

            monkeypatch.setattr(os, "scandir", denied)
    network = found(root)
    assert (network.fault, network.versions["1"].fault) == ("", "")
    assert network.versions["2"].fault


def test_what_has_no_effect_is_noted(root: Path) -> None:
    for folder in ("1", "v2", "03"):
        put(root, "m", folder, "model.onnx")
    notes = " ".join(found(root).notes)
    for part in ("v2/model.onnx", "03/model.onnx"):
        assert part in notes


def test_hidden_files_and_folders_are_left_alone(root: Path) -> None:
    put(root, "m", "1", "model.onnx")
    before = found(root)
    put(root, ".new", "model.onnx")
    for name in (".DS_Store", ".nfs0001", ".git/config"):
        put(root, "m", "1", name)
        put(root, "m", name)
    assert look(root) == {"m": before}


def test_links_inside_the_repository_are_followed(root: Path) -> None:
    put(root, "m", "..2026", "model.onnx")
    (root / "m" / "..data").symlink_to("..2026")
    (root / "m" / "model.onnx").symlink_to("..data/model.onnx")
    (root / "m" / "3").symlink_to("..data")
    assert sorted(found(root).versions) == ["1", "3"]
    assert found(root).fault == ""


@pytest.mark.parametrize(
    "change", ["write", "replace", "add", "remove", "touch", "put times back", "mode"]
)
def test_whatever_changes_a_versions_files_changes_its_signature(root: Path, change: str) -> None:
    model = put(root, "m", "1", "model.onnx")
    data = put(root, "m", "1", "deep", "model.data")
    before = found(root).versions["1"].signature
    assert found(root).versions["1"].signature == before
    if change == "write":
        data.write_bytes(b"longer than before")
    elif change == "replace":
        put(root, "new").rename(model)
    elif change == "add":
        put(root, "m", "1", "more.data")
    elif change == "remove":
        data.unlink()
    elif change == "put times back":
        times = data.stat()
        data.write_bytes(b"ledom")
        os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "mode":
        data.chmod(0o600)
    else:
        later(model)
    assert found(root).versions["1"].signature != before


def test_a_version_does_not_change_with_another_one_or_with_the_description(root: Path) -> None:
    put(root, "m", "1", "model.onnx")
    put(root, "flat", "model.onnx")
    before = found(root).versions["1"], found(root, "flat").versions["1"]
    beside = found(root).description.signature
    put(root, "m", "2", "model.onnx")
    put(root, "m", "network.toml")
    put(root, "flat", "network.toml")
    assert (found(root).versions["1"], found(root, "flat").versions["1"]) == before
    assert found(root).description.signature != beside


def test_what_was_just_written_is_not_settled(root: Path) -> None:
    put(root, "m", "1", "model.onnx")
    assert not found(root).versions["1"].settled


def test_what_was_renamed_into_place_is_settled_at_once(root: Path) -> None:
    # The file's times are a second old, as if the copying beside had ended then.
    later(put(root, ".copy", "model.onnx"))
    (root / "m").mkdir()
    (root / ".copy").rename(root / "m" / "1")
    assert found(root).versions["1"].settled
    put(root, "m", "1", "more.data")  # and is not any more while somebody writes there
    assert not found(root).versions["1"].settled


def test_files_that_cannot_be_told_apart_by_name_alone_are_bounded(root: Path) -> None:
    put(root, "m", "1", "model.onnx")
    for number in range(30):
        put(root, "m", "1", *["deep"] * number, f"{number}.data")
    assert len(found(root).versions["1"].signature) < 15
