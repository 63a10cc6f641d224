"""The copy of a repository in a store: what is copied, when, how often, and what stays."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.runtime.intake.limits import Limits
from headrace.runtime.system.atomic_file import lock_file, write_file
from headrace.server.repository import mirror as module
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.folder import look
from headrace.server.repository.mirror import Mirror
from headrace.server.repository.remote import Object, ObjectChanged, RemoteFolder, StoreAway


class Store(RemoteFolder):
    """A store in memory, which counts what is read from it."""

    def __init__(self, **objects: bytes) -> None:
        self.address = "memory://store"
        self.holds = dict(objects)
        self.read: list[str] = []
        self.before_read: Callable[[str], object] = lambda path: None
        self.away = False

    def put(self, path: str, data: bytes) -> None:
        self.holds[path] = data

    def objects(self) -> list[Object]:
        if self.away:
            raise StoreAway(errno.EHOSTUNREACH, "memory://store cannot be reached: NoCable")
        return [Object(path, len(data), str(hash(data)), path) for path, data in self.holds.items()]

    def pieces(self, each: Object) -> Iterator[bytes]:
        self.before_read(each.path)
        self.read.append(each.path)
        data = self.holds[each.path]
        if len(data) != each.size:
            raise ObjectChanged(errno.ESTALE, f"{each.path} changed while it was copied")
        yield data[:3]
        yield data[3:]


@pytest.fixture
def store() -> Store:
    store = Store()
    store.put("m/network.toml", b"# nothing")
    store.put("m/1/model.onnx", b"first")
    store.put("m/1/weights/data", b"weights")
    store.put("m/2/model.onnx", b"second")
    store.put("plain/model.onnx", b"plain")
    return store


@pytest.fixture
def mirror(store: Store, tmp_path: Path) -> Mirror:
    return new(store, tmp_path)


def new(store: Store, cache: Path, max_bytes: int = 1000) -> Mirror:
    return Mirror(store, cache, max_bytes, ("config.json",))


def files(mirror: Mirror) -> dict[str, bytes]:
    """Every file that a reader of the repository finds, through links."""
    found: dict[str, bytes] = {}

    def walk(folder: Path, prefix: str) -> None:
        for each in folder.iterdir():
            if each.name.startswith("."):
                continue
            if each.is_dir():
                walk(each, f"{prefix}{each.name}/")
            else:
                found[prefix + each.name] = each.read_bytes()

    walk(mirror.root, "")
    return found


def copies(mirror: Mirror) -> list[str]:
    return sorted(each.name for each in (mirror.root / ".copies").iterdir())


def test_a_reader_finds_the_files_as_they_lie_in_the_store(mirror: Mirror, store: Store) -> None:
    assert not mirror.has_copies
    mirror.sync()
    assert files(mirror) == store.holds
    networks = look(mirror.root)
    assert {name: sorted(each.versions) for name, each in networks.items()} == {
        "m": ["1", "2"],
        "plain": ["1"],
    }
    assert not any(
        each.fault or not each.settled
        for network in networks.values()
        for each in network.versions.values()
    )
    assert mirror.has_copies


def test_what_was_copied_is_not_copied_again_by_a_later_server_either(
    mirror: Mirror, store: Store, tmp_path: Path
) -> None:
    mirror.sync()
    store.read.clear()
    mirror.sync()
    new(store, tmp_path).sync()
    assert store.read == []


def test_a_change_is_copied_when_two_looks_agree_and_leaves_other_versions_as_they_are(
    mirror: Mirror, store: Store
) -> None:
    mirror.sync()
    before = look(mirror.root)["m"]
    store.read.clear()
    store.put("m/2/model.onnx", b"another")
    store.put("m/3/model.onnx", b"third")
    mirror.sync()
    assert store.read == []
    mirror.sync()
    assert sorted(store.read) == ["m/2/model.onnx", "m/3/model.onnx", "m/network.toml"]
    assert files(mirror) == store.holds
    after = look(mirror.root)["m"].versions
    assert sorted(after) == ["1", "2", "3"]
    assert after["1"].signature == before.versions["1"].signature
    assert after["2"].signature != before.versions["2"].signature


def test_what_changes_at_each_look_is_not_copied(mirror: Mirror, store: Store) -> None:
    mirror.sync()
    store.read.clear()
    for number in range(3):
        store.put("m/2/model.onnx", b"%d" % number)
        mirror.sync()
    assert store.read == []
    assert files(mirror)["m/2/model.onnx"] == b"second"


def test_a_first_look_begins_anew_if_an_object_changes_while_it_is_copied(
    mirror: Mirror, store: Store
) -> None:
    changes = iter([b"SECOND", b"shorter"])  # the first has the same size

    def change(path: str) -> None:
        if path == "m/2/model.onnx":
            store.put(path, next(changes, store.holds[path]))

    store.before_read = change
    mirror.sync()
    assert files(mirror) == store.holds
    assert store.holds["m/2/model.onnx"] == b"shorter"
    assert mirror.faults == {}


def test_a_copy_that_an_object_changed_under_is_thrown_away(mirror: Mirror, store: Store) -> None:
    """The older content may come back, and has the older digest then."""
    mirror.sync()
    store.put("m/2/model.onnx", b"third!")
    mirror.sync()
    store.before_read = lambda path: store.put("m/2/model.onnx", b"fourth")
    mirror.sync()
    assert mirror.faults == {"m": "its files changed while they were copied"}
    assert files(mirror)["m/2/model.onnx"] == b"second"
    assert not any(each.endswith(".part") for each in copies(mirror))
    store.before_read = lambda path: None
    store.put("m/2/model.onnx", b"third!")
    mirror.sync()
    mirror.sync()
    assert files(mirror) == store.holds
    assert mirror.faults == {}


@pytest.mark.parametrize("damage", [b"", b"secXnd", None])
def test_a_damaged_file_is_copied_anew_and_no_other(
    mirror: Mirror, store: Store, damage: bytes | None
) -> None:
    mirror.sync()
    store.read.clear()
    model = mirror.root / "m" / "2" / "model.onnx"
    if damage is None:
        model.unlink()
    else:
        model.write_bytes(damage)
    mirror.sync()
    assert store.read == ["m/2/model.onnx"]
    assert files(mirror) == store.holds


def test_a_copy_goes_on_where_it_stopped(mirror: Mirror, store: Store, tmp_path: Path) -> None:
    def break_down(path: str) -> None:
        if len(store.read) == 3:
            raise StoreAway(errno.EHOSTUNREACH, "gone")

    store.before_read = break_down
    with pytest.raises(StoreAway):
        mirror.sync()
    assert (mirror.trouble, mirror.is_complete) == ("gone", False)
    store.before_read = lambda path: None
    new(store, tmp_path).sync()
    assert files(mirror) == store.holds
    assert len(store.read) == len(store.holds)


def test_what_is_there_stays_while_the_store_is_away(mirror: Mirror, store: Store) -> None:
    mirror.sync()
    store.away = True
    with pytest.raises(StoreAway):
        mirror.sync()
    assert mirror.trouble == "memory://store cannot be reached: NoCable"
    assert files(mirror) == store.holds
    assert next(each.value for each in mirror.snapshot()) == 0
    store.away = False
    mirror.sync()
    assert mirror.trouble == ""
    assert next(each.value for each in mirror.snapshot()) == 1


def test_the_copies_of_what_has_gone_are_removed(mirror: Mirror, store: Store) -> None:
    mirror.sync()
    assert len(copies(mirror)) == 4
    for path in ("m/2/model.onnx", "plain/model.onnx"):
        del store.holds[path]
    mirror.sync()
    mirror.sync()
    assert files(mirror) == store.holds
    assert len(copies(mirror)) == 2


def test_what_does_not_fit_is_refused_before_it_is_read(store: Store, tmp_path: Path) -> None:
    mirror = new(store, tmp_path, 20)
    mirror.sync()
    assert mirror.faults == {
        "m": "its 27 bytes do not fit into the 20 that copies may take (--max-cache-bytes)"
    }
    assert store.read == ["plain/model.onnx"]
    reader = RepositoryFiles(mirror.root, Limits(), mirror=mirror)
    assert {name: each.fault for name, each in reader.look().items()} == {
        **mirror.faults,
        "plain": "",
    }


def test_a_network_that_outgrows_its_place_keeps_its_older_versions(
    store: Store, tmp_path: Path
) -> None:
    mirror = new(store, tmp_path, 40)
    mirror.sync()
    reader = RepositoryFiles(mirror.root, Limits(), mirror=mirror)
    before = reader.look()["m"]
    store.put("m/3/model.onnx", bytes(100))
    mirror.sync()
    mirror.sync()
    after = reader.look()["m"]
    assert after.versions == before.versions
    assert (before.fault, "do not fit" in after.fault) == ("", True)


def test_a_full_disk_is_told_and_not_kept_full(
    mirror: Mirror, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: Iterator[bytes]) -> None:
        if "model" in path.name and "first" in b"".join(data).decode():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_file(path, data)

    monkeypatch.setattr(module, "write_file", full)
    del store.holds["m/2/model.onnx"], store.holds["plain/model.onnx"]
    mirror.sync()
    assert mirror.faults == {"m": "No space left on device"}
    assert copies(mirror) == []
    monkeypatch.undo()
    mirror.sync()
    assert files(mirror) == store.holds


def test_an_object_that_is_also_a_folder_is_left_out(mirror: Mirror, store: Store) -> None:
    store.put("m", b"object")
    store.put("m/1", b"object")
    mirror.sync()
    assert {*store.holds} - {*files(mirror)} == {"m", "m/1"}


def test_a_model_beside_the_networks_is_told_where_to_go_and_other_files_are_left(
    mirror: Mirror, store: Store
) -> None:
    store.put("other.onnx", b"model")
    store.put("README.md", b"read me")
    store.put("config.json", b"{}")
    mirror.sync()
    assert mirror.faults == {"other.onnx": "is a file; move it to other/model.onnx"}
    assert {*store.holds} - {*files(mirror)} == {"other.onnx", "README.md"}


def test_a_size_that_is_not_told_is_no_size(mirror: Mirror, store: Store) -> None:
    objects = store.objects
    store.objects = lambda: [each._replace(size=-1) for each in objects()]  # type: ignore[method-assign]
    mirror.sync()
    assert mirror.faults["plain"] == "model.onnx: the server does not tell its size"
    assert store.read == []


def test_one_server_copies_at_a_time(mirror: Mirror, store: Store) -> None:
    descriptor = lock_file(mirror.root / ".lock")
    with pytest.raises(BlockingIOError, match=f"process {os.getpid()} is copying it"):
        mirror.sync()
    os.close(descriptor)
    mirror.sync()
    assert files(mirror) == store.holds


def test_a_stop_ends_a_copy_in_progress(mirror: Mirror, store: Store) -> None:
    store.before_read = lambda path: mirror.stop()
    with pytest.raises(StoreAway, match="shutting down"):
        mirror.begin().result()
    assert len(store.read) == 1
    assert not mirror.has_copies
