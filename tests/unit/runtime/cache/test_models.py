"""Models that were read before are read again when somebody asks for their graph."""

from __future__ import annotations

import hashlib
import os
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import pytest

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.models import KnownModels
from headrace.runtime.errors import FailedPrecondition, InvalidModel
from headrace.runtime.intake import read
from headrace.runtime.intake.external import FilesInFolder
from headrace.runtime.intake.limits import Limits
from headrace.runtime.network.network import Network
from headrace.runtime.system.file_identity import FileIdentity
from headrace.testing.case import parse

_TEXT = "m (float[N,512] x) => (float[N,512] y) { [product] y = MatMul(x, w) }"


def model(size: int = 512) -> onnx.ModelProto:
    made = parse(_TEXT)
    weight = np.random.default_rng(0).standard_normal((512, size)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    made.metadata_props.add(key="author", value="somebody")
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "repository" / "model.onnx"
    path.parent.mkdir()
    onnx.save(model(), path)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> NetworkCache:
    return NetworkCache(tmp_path / "cache", b"k" * 32, 2**30)


def network_of(cache: NetworkCache | None, file: Path, limits: Limits | None = None) -> Network:
    models = KnownModels(cache, limits or Limits())
    return models.from_file(file, file.parent, spooled=True, root=None)


def told(network: Network) -> Any:
    return (
        network.digest,
        network.inputs,
        network.outputs,
        network.defaults,
        network.notes,
        network.size,
        network.weight_bytes,
        network.widened_bytes,
        network.operators,
        network.random_layers,
        network.metadata(2**16),
    )


def test_a_known_model_tells_the_same_without_being_read(cache: NetworkCache, file: Path) -> None:
    first, second = network_of(cache, file), network_of(cache, file)
    assert (first.is_read, second.is_read) == (True, False)
    assert told(second) == told(first)
    assert not second.is_read
    assert second.to_bytes() == first.to_bytes()
    assert second.is_read


def test_a_known_model_is_what_the_file_held_though_another_one_is_in_its_place(
    cache: NetworkCache, file: Path, tmp_path: Path
) -> None:
    first, second = network_of(cache, file), network_of(cache, file)
    (tmp_path / "other").write_bytes(b"something else")
    (tmp_path / "other").rename(file)
    assert second.to_bytes() == first.to_bytes()


def test_a_known_model_whose_file_was_written_to_is_refused(
    cache: NetworkCache, file: Path
) -> None:
    network_of(cache, file)
    known = network_of(cache, file)
    file.write_bytes(b"something else, in the same place")
    with pytest.raises(FailedPrecondition, match="written to since"):
        known.to_bytes()


def test_the_bytes_of_a_known_model_are_kept(cache: NetworkCache, file: Path) -> None:
    first = network_of(cache, file)
    known = KnownModels(cache, Limits()).from_bytes(file.read_bytes())
    assert not known.is_read
    assert known.to_bytes() == first.to_bytes()


def test_the_model_of_a_known_network_leaves_memory_and_is_read_again(
    cache: NetworkCache, file: Path
) -> None:
    first = network_of(cache, file)
    known = network_of(cache, file)
    model = weakref.ref(known.model)
    known.free_memory()
    assert (model(), known.is_read) == (None, False)
    assert known.to_bytes() == first.to_bytes()
    assert known.is_read
    first.free_memory()  # nobody knows what it would be read from
    assert first.is_read


def test_the_model_of_a_known_network_that_is_kept_stays(cache: NetworkCache, file: Path) -> None:
    network_of(cache, file)
    known = network_of(cache, file)
    known.keep()
    model = known.model
    known.free_memory()
    assert known.model is model


def opened(monkeypatch: pytest.MonkeyPatch, *, settled: bool) -> list[FileIdentity]:
    """The files whose bytes are looked at from now on."""
    looked: list[FileIdentity] = []
    digest = hashlib.file_digest

    def noted(file: BinaryIO, name: str) -> object:
        looked.append(FileIdentity.of(file.fileno()))
        return digest(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr("hashlib.file_digest", noted)
    monkeypatch.setattr(FileIdentity, "is_settled", settled)
    return looked


def test_a_known_file_is_looked_at_once(
    cache: NetworkCache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, looked = network_of(cache, file), opened(monkeypatch, settled=True)
    models = KnownModels(cache, Limits())
    known = [models.from_file(file, file.parent, spooled=True, root=None) for _ in range(3)]
    assert len(looked) == 1
    assert {each.to_bytes() for each in known} == {first.to_bytes()}


def test_a_later_server_looks_at_no_file_that_an_earlier_one_has_looked_at(
    cache: NetworkCache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = opened(monkeypatch, settled=True)
    for _ in range(3):
        KnownModels(cache, Limits()).from_file(file, file.parent, spooled=True, root=None)
    assert len(looked) == 1


def test_a_file_that_was_just_written_is_looked_at_again(
    cache: NetworkCache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network_of(cache, file)
    looked, models = opened(monkeypatch, settled=False), KnownModels(cache, Limits())
    for _ in range(3):
        models.from_file(file, file.parent, spooled=True, root=None)
    assert len(looked) == 3


def test_a_file_in_the_place_of_a_known_one_is_read(
    cache: NetworkCache, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(monkeypatch, settled=True)
    models = KnownModels(cache, Limits())
    models.from_file(file, file.parent, spooled=True, root=None)
    other = model()
    other.doc_string = "another one"
    onnx.save(other, tmp_path / "other")
    (tmp_path / "other").rename(file)
    read = models.from_file(file, file.parent, spooled=True, root=None)
    assert read.is_read
    assert read.model.doc_string == "another one"


def test_a_file_that_stays_open_is_closed_with_its_network(cache: NetworkCache, file: Path) -> None:
    def is_open() -> bool:
        held = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        return str(file.resolve()) in held

    network_of(cache, file)
    assert not is_open()
    known = network_of(cache, file)
    assert is_open()
    del known
    assert not is_open()


def test_bytes_and_a_file_are_the_same_model(cache: NetworkCache, file: Path) -> None:
    network_of(cache, file)
    assert not KnownModels(cache, Limits()).from_bytes(file.read_bytes()).is_read


@pytest.mark.parametrize("change", ["file", "limits", "key"])
def test_what_is_known_is_of_the_same_bytes_limits_and_key(
    cache: NetworkCache, file: Path, tmp_path: Path, change: str
) -> None:
    network_of(cache, file)
    limits, used = Limits(), cache
    if change == "file":
        other = model()
        other.doc_string = "another one"
        onnx.save(other, file)
    elif change == "limits":
        limits = Limits(nodes=7)
    else:
        used = NetworkCache(tmp_path / "cache", b"o" * 32, 2**30)
    assert network_of(used, file, limits).is_read


def test_without_a_cache_a_model_is_read(file: Path) -> None:
    network_of(None, file)
    assert network_of(None, file).is_read


def test_limits_that_the_model_breaks_are_seen_though_it_is_known(
    cache: NetworkCache, file: Path
) -> None:
    network_of(cache, file)
    with pytest.raises(InvalidModel):
        network_of(cache, file, Limits(tensor_bytes=8))


def test_another_version_reads_the_model(
    cache: NetworkCache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network_of(cache, file)
    monkeypatch.setattr("headrace.runtime.cache.models._readers", lambda: {"onnx": "0"})
    assert network_of(cache, file).is_read


def beside(file: Path, scale: float = 1.0, name: str = "weights") -> None:
    """Saves the model with its weights in another file."""
    made = model()
    (weight,) = made.graph.initializer
    scaled = onnx.numpy_helper.to_array(weight) * np.float32(scale)
    weight.CopyFrom(onnx.numpy_helper.from_array(scaled, "w"))
    file.with_name(name).unlink(missing_ok=True)
    onnx.save(made, file, save_as_external_data=True, location=name, size_threshold=0)


def test_a_known_model_with_weights_beside_it_tells_the_same_without_being_read(
    cache: NetworkCache, file: Path
) -> None:
    beside(file)
    first, second = network_of(cache, file), network_of(cache, file)
    assert (first.is_read, second.is_read) == (True, False)
    assert told(second) == told(first)
    beside(file, scale=2)
    assert second.to_bytes() == first.to_bytes(), "it is read from the file that was there"


def test_a_model_is_read_for_each_file_of_weights_beside_it(
    cache: NetworkCache, file: Path
) -> None:
    known = []
    for scale in (1, 2):
        beside(file, scale)
        known.append(network_of(cache, file))
    assert [each.is_read for each in known] == [True, True]
    for scale, first in zip((1, 2), known, strict=True):
        beside(file, scale)
        again = network_of(cache, file)
        assert not again.is_read
        assert again.digest == first.digest


def test_weights_beside_a_known_model_that_were_written_to_are_refused(
    cache: NetworkCache, file: Path
) -> None:
    beside(file)
    network_of(cache, file)
    known = network_of(cache, file)
    with file.with_name("weights").open("r+b") as weights:
        weights.write(b"other")
    with pytest.raises(FailedPrecondition, match="written to since"):
        known.to_bytes()


def test_the_bytes_of_a_known_model_with_weights_beside_it_are_refused(
    cache: NetworkCache, file: Path
) -> None:
    beside(file)
    network_of(cache, file)
    with pytest.raises(InvalidModel, match="'weights', which the server does not have"):
        KnownModels(cache, Limits()).from_bytes(file.read_bytes())


def test_a_known_model_leaves_no_file_open_if_there_are_no_more_descriptors(
    cache: NetworkCache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    dup = os.dup

    def scarce(descriptor: int) -> int:
        if kept:
            raise OSError("too many open files")
        kept.append(dup(descriptor))
        return kept[0]

    beside(file)
    network_of(cache, file)
    monkeypatch.setattr(os, "dup", scarce)
    with pytest.raises(InvalidModel, match="too many"):
        network_of(cache, file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(kept[0])


def test_a_known_model_without_its_file_of_weights_is_refused(
    cache: NetworkCache, file: Path
) -> None:
    beside(file)
    network_of(cache, file)
    file.with_name("weights").unlink()
    with pytest.raises(InvalidModel, match=r"'weights', which cannot be read: not a file"):
        network_of(cache, file)


def test_a_model_with_many_files_beside_it_is_read(
    cache: NetworkCache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashed(_: FilesInFolder) -> dict[str, str]:
        raise AssertionError("the digests of so many files are of no use")

    monkeypatch.setattr("headrace.runtime.cache.models._MOST_FILES", 0)
    monkeypatch.setattr(FilesInFolder, "digests", hashed)
    beside(file)
    assert network_of(cache, file).is_read
    assert network_of(cache, file).is_read


def test_a_noted_network_is_known_where_it_was_written(cache: NetworkCache, file: Path) -> None:
    """So a client's network is, which the state directory keeps."""
    models, first = KnownModels(cache, Limits()), network_of(None, file)
    file.write_bytes(first.to_bytes())
    models.note(first)
    second = network_of(cache, file)
    assert not second.is_read
    assert told(second) == told(first)
    assert second.to_bytes() == first.to_bytes()


def test_a_model_that_says_very_much_of_itself_is_read(cache: NetworkCache, file: Path) -> None:
    large = model()
    large.metadata_props.add(key="text", value="x" * 2**21)
    onnx.save(large, file)
    network_of(cache, file)
    assert network_of(cache, file).is_read


def test_a_model_that_does_not_stay_is_read(cache: NetworkCache, file: Path) -> None:
    network_of(cache, file)
    models = KnownModels(cache, Limits())
    assert models.from_file(file, file.parent, spooled=False, root=None).is_read


def test_a_full_disk_costs_a_warning(
    cache: NetworkCache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(cache, "write", fail)
    assert network_of(cache, file).is_read


def test_a_model_that_could_not_be_read_is_tried_again(
    cache: NetworkCache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = network_of(cache, file), network_of(cache, file)

    def fail(*_: object, **__: object) -> None:
        raise InvalidModel("no memory", field="model")

    with monkeypatch.context() as patched:
        patched.setattr(read, "from_file", fail)
        with pytest.raises(InvalidModel):
            _ = second.model
    assert second.to_bytes() == first.to_bytes()
