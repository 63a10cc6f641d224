"""Files of weights that processes map: what is trusted, who writes, and what makes room."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.cache.weights import WeightFiles
from tests.support.child import Child
from tests.support.gate import run_together

_KEY = b"k" * 32
_MANY_BYTES = 2**20
_DIGEST = "a" * 64
_OTHER = "b" * 64
_WEIGHTS = bytes(range(256)) * 40
_MODEL = b"a model that refers to them"

_WRITER_THAT_STOPS_HALF_WAY = """
import sys, time
from pathlib import Path
from headrace.runtime.cache.weights import WeightFiles

def write(path):
    path.write_bytes(b"half")
    (path.parent / WeightFiles.file_name("a" * 64)).write_bytes(b"half")
    print("half", flush=True)
    sys.stdin.read()

WeightFiles(Path(sys.argv[1]), b"k" * 32, 2**20).add("a" * 64, write)
"""


def files(root: Path, key: bytes = _KEY, max_bytes: int = _MANY_BYTES) -> WeightFiles:
    return WeightFiles(root, key, max_bytes)


def writing(
    digest: str = _DIGEST, weights: bytes = _WEIGHTS, model: bytes = _MODEL
) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(model)
        (path.parent / WeightFiles.file_name(digest)).write_bytes(weights)

    return write


def path_of(root: Path, digest: str = _DIGEST) -> Path:
    return root / "weights" / WeightFiles.file_name(digest)


def kept(root: Path) -> list[str]:
    return sorted(each.name for each in (root / "weights").iterdir())


def test_another_process_finds_what_was_added(tmp_path: Path) -> None:
    told = files(tmp_path)
    told.add(_DIGEST, writing())
    found = WeightFiles.from_json(told.to_json()).find(_DIGEST)
    assert found is not None
    assert found.model == _MODEL
    assert found.path.read_bytes().startswith(_WEIGHTS)
    assert kept(tmp_path) == [WeightFiles.file_name(_DIGEST)]


def test_a_file_is_checked_once_for_all_servers_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path).add(_DIGEST, writing())
    monkeypatch.setattr(WeightFiles, "_macs", lambda *_: (b"", b""))
    assert files(tmp_path).find(_DIGEST) is not None
    os.utime(path_of(tmp_path))
    with pytest.raises(EntryRefused):
        files(tmp_path).find(_DIGEST)


def test_what_nobody_added_is_not_found(tmp_path: Path) -> None:
    assert files(tmp_path).find(_DIGEST) is None
    files(tmp_path).add(_OTHER, writing(_OTHER))
    assert files(tmp_path).find(_DIGEST) is None


def test_a_model_without_weights_in_a_file_can_be_kept(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        path.write_bytes(_MODEL)

    files(tmp_path).add(_DIGEST, write)
    found = files(tmp_path).find(_DIGEST)
    assert found is not None
    assert found.model == _MODEL


def test_files_and_their_folder_are_for_the_server_alone(tmp_path: Path) -> None:
    files(tmp_path).add(_DIGEST, writing())
    path = path_of(tmp_path)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path)] == [0o700, 0o600]


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    files(tmp_path).add(_DIGEST, writing())
    before = path_of(tmp_path).stat()
    files(tmp_path).add(_DIGEST, writing(weights=b"others"))
    after = path_of(tmp_path).stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
    assert kept(tmp_path) == [WeightFiles.file_name(_DIGEST)]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        writing()(path)
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        files(tmp_path).add(_DIGEST, fail)
    assert kept(tmp_path) == []


def test_many_writers_at_a_time_do_not_meet(tmp_path: Path) -> None:
    weights = files(tmp_path, max_bytes=2**24)

    def add(number: int) -> None:
        for digest in (f"{number:064x}", "f" * 64):
            weights.add(digest, writing(digest))
            assert weights.find(digest) is not None

    run_together(*(partial(add, number) for number in range(12)))
    assert len(kept(tmp_path)) == 13


def test_a_killed_writer_leaves_nothing_that_is_used_and_the_next_one_removes_it(
    tmp_path: Path,
) -> None:
    with Child(_WRITER_THAT_STOPS_HALF_WAY, tmp_path) as child:
        assert child.line() == "half"
        files(tmp_path).add(_OTHER, writing(_OTHER))
        assert len(kept(tmp_path)) == 2, "what a living process writes was removed"
    assert files(tmp_path).find(_DIGEST) is None
    files(tmp_path).add(_DIGEST, writing())
    assert kept(tmp_path) == [WeightFiles.file_name(each) for each in (_DIGEST, _OTHER)]


def _flip(place: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)

    return flip


def _signed_by_another(path: Path) -> None:
    path.unlink()
    files(path.parent.parent, b"another" * 5).add(_DIGEST, writing())


def _of_another_network(path: Path) -> None:
    files(path.parent.parent).add(_OTHER, writing(_OTHER))
    path_of(path.parent.parent, _OTHER).replace(path)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    elsewhere = path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(elsewhere)


_SPOILT = [
    pytest.param(_flip(0), id="first byte"),
    pytest.param(_flip(len(_WEIGHTS) + 3), id="model"),
    pytest.param(_flip(-72), id="length"),
    pytest.param(_flip(-1), id="mac"),
    pytest.param(lambda path: os.truncate(path, 1000), id="cut"),
    pytest.param(lambda path: os.truncate(path, 0), id="empty"),
    pytest.param(_signed_by_another, id="another key"),
    pytest.param(_of_another_network, id="another network"),
    pytest.param(_pipe, id="pipe"),
    pytest.param(_link, id="link"),
]


@pytest.mark.parametrize("spoil", _SPOILT)
@pytest.mark.parametrize("again", [False, True], ids=["new process", "same process"])
def test_a_file_that_is_not_as_it_was_written_is_refused_and_removed(
    tmp_path: Path, spoil: Callable[[Path], None], again: bool
) -> None:
    first = files(tmp_path)
    first.add(_DIGEST, writing())
    assert first.find(_DIGEST) is not None
    spoil(path_of(tmp_path))
    os.utime(path_of(tmp_path), (1, 1))  # two writes within a tick of the clock look like one
    reader = first if again else files(tmp_path)
    with pytest.raises(EntryRefused):
        reader.find(_DIGEST)
    assert reader.find(_DIGEST) is None
    reader.add(_DIGEST, writing())
    assert reader.find(_DIGEST) is not None


def test_a_file_larger_than_the_cache_is_not_read(tmp_path: Path) -> None:
    weights = files(tmp_path)
    weights.add(_DIGEST, writing())
    os.truncate(path_of(tmp_path), 2 * _MANY_BYTES)
    with pytest.raises(EntryRefused, match="not a file of weights"):
        weights.find(_DIGEST)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    files(tmp_path).add(_DIGEST, writing())
    (tmp_path / "weights").chmod(mode)
    with pytest.raises(EntryRefused, match="others"):
        files(tmp_path).find(_DIGEST)
    with pytest.raises(EntryRefused, match="others"):
        files(tmp_path).add(_OTHER, writing(_OTHER))
    assert path_of(tmp_path).exists()


def test_a_link_to_a_folder_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "weights").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EntryRefused):
        files(tmp_path).add(_DIGEST, writing())
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_was_not_used_for_longest_leaves_for_weights(tmp_path: Path) -> None:
    cache = NetworkCache(tmp_path, _KEY, 48_000)
    weights = files(tmp_path, max_bytes=48_000)
    cache.write("default", CacheKey("old"), bytes(15_000))
    weights.add(_DIGEST, writing())
    for number, path in enumerate([*tmp_path.glob("default/*"), path_of(tmp_path)]):
        os.utime(path, (number, number))
    weights.add(_OTHER, writing(_OTHER, bytes(20_000)))
    assert cache.read("default", CacheKey("old")) is None
    assert weights.find(_DIGEST) is not None
    os.utime(path_of(tmp_path), (1, 1))
    cache.write("default", CacheKey("new"), bytes(15_000))
    assert kept(tmp_path) == [WeightFiles.file_name(_OTHER)]


def test_a_use_is_noted_so_that_what_is_used_stays(tmp_path: Path) -> None:
    weights = files(tmp_path, max_bytes=36_000)
    for digest in (_DIGEST, _OTHER):
        weights.add(digest, writing(digest))
        os.utime(path_of(tmp_path, digest), (1, 1))
    assert weights.find(_DIGEST) is not None
    weights.add("c" * 64, writing("c" * 64))
    assert weights.find(_DIGEST) is not None
    assert weights.find(_OTHER) is None


def test_weights_larger_than_the_cache_are_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="whole cache"):
        files(tmp_path, max_bytes=8_000).add(_DIGEST, writing())
    assert kept(tmp_path) == []


def of_a_process(root: Path, key: bytes = _KEY) -> WeightFiles:
    return WeightFiles.from_json(json.loads(json.dumps(files(root, key).to_json())))


def test_a_devices_process_maps_what_the_server_wrote(tmp_path: Path) -> None:
    files(tmp_path).add(_DIGEST, writing())
    there = path_of(tmp_path).stat().st_ino
    assert of_a_process(tmp_path).find(_DIGEST) == files(tmp_path).find(_DIGEST)
    of_a_process(tmp_path).add(_DIGEST, writing())
    assert path_of(tmp_path).stat().st_ino == there


def test_the_server_maps_nothing_that_a_devices_process_wrote(tmp_path: Path) -> None:
    process, server = of_a_process(tmp_path), files(tmp_path)
    process.add(_DIGEST, writing())
    assert of_a_process(tmp_path).find(_DIGEST) is not None
    assert server.find(_DIGEST) is None
    assert kept(tmp_path) == []
    server.add(_DIGEST, writing())
    assert server.find(_DIGEST) is not None
    assert process.find(_DIGEST) is not None


def test_processes_of_another_server_are_not_trusted(tmp_path: Path) -> None:
    of_a_process(tmp_path, b"another" * 5).add(_DIGEST, writing())
    with pytest.raises(EntryRefused):
        of_a_process(tmp_path).find(_DIGEST)
