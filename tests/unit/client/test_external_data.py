"""Weights in files beside a model are sent along, and nothing else is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from headrace.client import errors
from headrace.client.model import CHUNK_BYTES, INLINE_BYTES, read_model
from tests.support.client_fake import Fake
from tests.support.model_zoo import FLOAT, graph, model, node, value

WEIGHTS = np.arange(INLINE_BYTES, dtype=np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def proto() -> onnx.ModelProto:
    """With weights in the graph, in a body and in attributes."""
    held = numpy_helper.from_array(WEIGHTS[:3000], "held")
    body = graph([node("Constant", [], ["t"], value=held)], [], [value("t", None)], {"b": WEIGHTS})
    branch = node("If", ["flag"], ["y"], then_branch=body, else_branch=body)
    inputs = [value("flag", [], TensorProto.BOOL)]
    return model([branch], inputs, [value("y", None)], {"w": WEIGHTS, "small": WEIGHTS[:2]})


def save_pair(folder: Path, **entries: str | int) -> Path:
    """A model whose weight, float32[4], lies where `entries` say."""
    weight = TensorProto(name="w", dims=[4], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        weight.external_data.add(key=key, value=str(text))
    it = model([node("Identity", ["w"], ["y"])], [], [value("y", None)])
    it.graph.initializer.append(weight)
    path = folder / "model.onnx"
    path.write_bytes(it.SerializeToString())
    return path


def sent(fake: Fake) -> onnx.ModelProto:
    """The model that arrived."""
    (request,) = fake.requests("LoadNetwork") + fake.requests("QueryNetwork")
    return onnx.ModelProto.FromString(request.model.data or fake.uploaded)


def without_locations(it: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in onnx.external_data_helper._get_all_tensors(it):
        tensor.ClearField("data_location")
    return it


@pytest.mark.parametrize("method", ["load_network", "query_network"])
@pytest.mark.parametrize(
    "options",
    [
        {"all_tensors_to_one_file": True, "location": "weights.bin"},
        {"all_tensors_to_one_file": False},
        {"all_tensors_to_one_file": True, "convert_attribute": True},
        {"all_tensors_to_one_file": True, "size_threshold": 1024},
    ],
    ids=["one file", "a file for each", "attributes too", "large ones alone"],
)
def test_external_data_is_sent_as_if_it_lay_in_the_model(
    client: Any, fake: Fake, folder: Path, method: str, options: dict[str, Any]
) -> None:
    path = folder / "model.onnx"
    onnx.save(proto(), path, save_as_external_data=True, **{"size_threshold": 0} | options)
    assert path.stat().st_size < 30_000, "the weights are elsewhere"
    told: list[tuple[int, int]] = []
    getattr(client, method)(path, progress=lambda *sizes: told.append(sizes))
    assert without_locations(sent(fake)) == without_locations(onnx.load(path))
    assert told[-1] == (len(fake.uploaded), len(fake.uploaded))


def test_a_small_model_with_external_data_is_not_uploaded(
    client: Any, fake: Fake, folder: Path
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "w.bin").write_bytes(WEIGHTS[:8].tobytes())
    client.load_network(save_pair(folder, location="sub/w.bin", offset=16))
    assert not fake.requests("UploadModel")
    (weight,) = sent(fake).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(weight), WEIGHTS[4:8])


def test_a_link_inside_the_folder_is_followed(client: Any, fake: Fake, folder: Path) -> None:
    (folder / "v1.bin").write_bytes(WEIGHTS[:4].tobytes())
    (folder / "w.bin").symlink_to("v1.bin")
    client.load_network(save_pair(folder, location="w.bin", length=16))
    (weight,) = sent(fake).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(weight), WEIGHTS[:4])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret"}, "outside its folder"),
        ({"location": "sub/../../secret"}, "outside its folder"),
        ({"location": "{outside}/secret"}, "outside its folder"),
        ({"location": "link"}, "outside its folder"),
        ({"location": "outside/secret"}, "outside its folder"),
        ({"location": "w.bin\0"}, "outside its folder"),
        ({"location": "missing"}, "'missing' beside it, which cannot be read: No such file"),
        ({"location": "loop"}, "cannot be read: Too many levels"),
        ({"location": "a" * 300}, "cannot be read: File name too long"),
        ({"location": "sub"}, "not a file"),
        ({"location": ""}, "not a file"),
        ({"location": "pipe"}, "not a file"),
        ({"location": "w.bin", "offset": 1}, "bytes 1 to 17 of 'w.bin', which has 16"),
        ({"location": "w.bin", "length": 17}, "bytes 0 to 17 of 'w.bin', which has 16"),
        ({"location": "w.bin", "offset": -4}, "which has 16"),
        ({"location": "w.bin", "offset": "four"}, "offset or length"),
        ({"location": "w.bin", "length": "9" * 5000}, "offset or length"),
    ],
)
def test_what_is_no_piece_of_a_file_in_the_folder_is_refused_before_anything_is_sent(
    client: Any, fake: Fake, folder: Path, entries: dict[str, str | int], message: str
) -> None:
    (folder.parent / "secret").write_bytes(bytes(16))
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "outside").symlink_to(folder.parent)
    (folder / "loop").symlink_to("loop")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "w.bin").write_bytes(bytes(16))
    location = str(entries["location"]).format(outside=folder.parent)
    with pytest.raises(errors.InvalidArgument) as caught:
        client.load_network(save_pair(folder, **entries | {"location": location}))
    assert message in str(caught.value)
    assert caught.value.details.field == "model"
    assert not fake.calls


def shorten(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(INLINE_BYTES)


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


@pytest.mark.parametrize("change", [shorten, replace, Path.unlink])
def test_a_file_that_changes_while_it_is_sent_makes_the_load_fail(
    client: Any, fake: Fake, folder: Path, change: Callable[[Path], None]
) -> None:
    path = folder / "model.onnx"
    onnx.save(proto(), path, save_as_external_data=True, all_tensors_to_one_file=False)
    changed = sorted(set(folder.iterdir()) - {path})

    def at_once(sent: int, total: int) -> None:
        while changed:
            change(changed.pop())

    with pytest.raises(errors.InvalidArgument, match=r"was changed while it was sent|No such file"):
        client.load_network(path, progress=at_once)
    assert not fake.requests("LoadNetwork")


def test_files_are_read_a_piece_at_a_time(folder: Path) -> None:
    size = 2**41
    with (folder / "w.bin").open("wb") as file:
        file.truncate(size)
    content = read_model(save_pair(folder, location="w.bin", length=size))
    assert content.size > size
    chunks = list(itertools.islice(content.chunks(), 3))
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES] * 3


@pytest.mark.parametrize("data", [b"location", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"])
def test_what_is_no_model_is_sent_as_it_is(
    client: Any, fake: Fake, folder: Path, data: bytes
) -> None:
    path = folder / "model.onnx"
    path.write_bytes(data + b"location" * 3)
    client.load_network(path)
    assert fake.requests("LoadNetwork")[0].model.data == data + b"location" * 3
