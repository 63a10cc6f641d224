"""The repository of a store on this machine: what is copied, when, how often, and what stays."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.errors import ResourceExhausted, Unavailable
from headrace.runtime.intake.limits import Limits
from headrace.runtime.system.atomic_file import lock_file, write_file
from headrace.server import backend
from headrace.server.backend import ServerCore
from headrace.server.repository import copies as module
from headrace.server.repository.files import RepositoryFiles
from headrace.server.repository.folder import look
from headrace.server.repository.mirror import Mirror
from headrace.server.repository.remote import Object, ObjectChanged, RemoteFolder, StoreAway
from headrace.server.repository.repository import Poller
from tests.support.patience import PATIENCE_SECONDS


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
        if self.away:
            raise StoreAway(errno.EHOSTUNREACH, f"{each.path} cannot be reached: NoCable")
        data = self.holds[each.path]
        if (len(data), str(hash(data))) != (each.size, each.tag):
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


def read(mirror: Mirror, *folders: str) -> dict[str, bytes]:
    """Every file of folders, as somebody who loads a network finds it."""
    places = [mirror.root / each for each in folders]
    with mirror.used(*places):
        return {
            str(Path(folder, path.relative_to(place))): path.read_bytes()
            for folder, place in zip(folders, places, strict=True)
            for path in place.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }


def names(mirror: Mirror) -> set[str]:
    """Every file that a reader of the repository finds, through links."""
    found: set[str] = set()

    def walk(folder: Path, prefix: str) -> None:
        for each in folder.iterdir():
            if each.name.startswith("."):
                continue
            if each.is_dir():
                walk(each, f"{prefix}{each.name}/")
            else:
                found.add(prefix + each.name)

    walk(mirror.root, "")
    return found


def copies(mirror: Mirror) -> list[str]:
    folders = (mirror.root / ".copies").iterdir()
    return sorted(each.name for each in folders if each.is_dir())


def held(mirror: Mirror) -> float:
    """What the copies take, as the metric tells."""
    *_, value = (each.value for each in mirror.snapshot())
    assert isinstance(value, int | float)
    return value


def model(number: int, size: int = 10) -> bytes:
    return b"%d" % number * size


def test_a_reader_finds_the_files_as_they_lie_in_the_store(mirror: Mirror, store: Store) -> None:
    assert not mirror.has_networks
    mirror.sync()
    assert names(mirror) == {*store.holds}
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
    assert read(mirror, "m/1") == {
        "m/1/model.onnx": b"first",
        "m/1/weights/data": b"weights",
    }
    assert read(mirror, "plain") == {"plain/model.onnx": b"plain"}
    assert mirror.has_networks


def test_a_look_copies_descriptions_and_a_read_copies_what_it_reads(
    mirror: Mirror, store: Store
) -> None:
    mirror.sync()
    assert store.read == ["m/network.toml"]
    assert not mirror.is_copied(mirror.root / "m" / "2")
    read(mirror, "m", "m/2")
    assert store.read == ["m/network.toml", "m/2/model.onnx"]
    assert mirror.is_copied(mirror.root / "m" / "2")
    assert not mirror.is_copied(mirror.root / "m" / "1")


def test_what_was_copied_is_not_copied_again_by_a_later_server_either(
    mirror: Mirror, store: Store, tmp_path: Path
) -> None:
    mirror.sync()
    read(mirror, "m/2")
    store.read.clear()
    mirror.sync()
    later = new(store, tmp_path)
    later.sync()
    assert read(later, "m/2") == {"m/2/model.onnx": b"second"}
    assert store.read == []


def test_a_change_is_taken_when_two_looks_agree_and_leaves_other_versions_as_they_are(
    mirror: Mirror, store: Store
) -> None:
    mirror.sync()
    read(mirror, "m/1", "m/2")
    reader = RepositoryFiles(mirror.root, Limits(), mirror=mirror)
    before = reader.look()["m"]
    store.read.clear()
    store.put("m/2/model.onnx", b"another")
    store.put("m/3/model.onnx", b"third")
    mirror.sync()
    assert "m/3/model.onnx" not in names(mirror)
    mirror.sync()
    assert store.read == ["m/network.toml"]
    assert read(mirror, "m/2") == {"m/2/model.onnx": b"another"}
    after = reader.look()["m"].versions
    assert sorted(after) == ["1", "2", "3"]
    assert after["1"].signature == before.versions["1"].signature
    assert after["2"].signature != before.versions["2"].signature


def test_a_signature_changes_with_the_store_and_not_with_a_copy(
    mirror: Mirror, store: Store
) -> None:
    store.put("m/config.pbtxt", b"# one")
    mirror.sync()
    reader = RepositoryFiles(mirror.root, Limits(), mirror=mirror)
    before = reader.look()
    read(mirror, "m", "m/1", "m/2", "plain")
    assert reader.look() == before
    store.put("m/config.pbtxt", b"# two")
    mirror.sync()
    mirror.sync()
    after = reader.look()
    assert after["plain"] == before["plain"]
    assert after["m"].versions["1"].signature != before["m"].versions["1"].signature
    assert after["m"].description.signature != before["m"].description.signature


def test_what_changes_at_each_look_is_not_taken(mirror: Mirror, store: Store) -> None:
    mirror.sync()
    read(mirror, "m/2")
    for number in range(3):
        store.put("m/2/model.onnx", b"%d" % number)
        mirror.sync()
    assert read(mirror, "m/2") == {"m/2/model.onnx": b"second"}


def test_one_network_is_brought_in_line_at_once_and_no_other(mirror: Mirror, store: Store) -> None:
    mirror.sync()
    store.put("m/2/model.onnx", b"newer")
    store.put("m/3/model.onnx", b"third")
    store.put("plain/model.onnx", b"newer")
    del store.holds["m/1/model.onnx"]
    mirror.sync("m")
    assert read(mirror, "m/2") == {"m/2/model.onnx": b"newer"}
    assert "m/3/model.onnx" in names(mirror)
    with pytest.raises(ObjectChanged):
        read(mirror, "plain")


def test_a_first_look_begins_anew_if_a_description_changes_while_it_is_copied(
    mirror: Mirror, store: Store
) -> None:
    changes = iter([b"# nOthing", b"# short"])  # the first has the same size

    def change(path: str) -> None:
        if path == "m/network.toml":
            store.put(path, next(changes, store.holds[path]))

    store.before_read = change
    mirror.sync()
    assert read(mirror, "m")["m/network.toml"] == b"# short"
    assert mirror.faults == {}


def test_a_model_that_changed_since_the_look_is_refused_until_the_next_one(
    mirror: Mirror, store: Store
) -> None:
    mirror.sync()
    store.put("m/2/model.onnx", b"SECOND")
    reader = RepositoryFiles(mirror.root, Limits(), mirror=mirror)
    with pytest.raises(Unavailable, match=r"^m/2/model\.onnx changed while it was copied$"):
        reader.newest("m")
    assert not mirror.is_copied(mirror.root / "m" / "2")
    mirror.sync()
    mirror.sync()
    assert read(mirror, "m/2") == {"m/2/model.onnx": b"SECOND"}


@pytest.mark.parametrize("damage", [b"", b"secXnd", None])
def test_a_damaged_file_is_copied_anew_and_no_other(
    mirror: Mirror, store: Store, damage: bytes | None
) -> None:
    mirror.sync()
    read(mirror, "m/1", "m/2")
    store.read.clear()
    path = mirror.root / "m" / "2" / "model.onnx"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    mirror.sync()
    assert read(mirror, "m/1", "m/2") == {
        "m/1/model.onnx": b"first",
        "m/1/weights/data": b"weights",
        "m/2/model.onnx": b"second",
    }
    assert store.read == ["m/2/model.onnx"]


@pytest.mark.parametrize("damage", ["name", "link"])
def test_a_damaged_folder_is_made_whole_at_the_next_look(
    mirror: Mirror, store: Store, damage: str, tmp_path: Path
) -> None:
    mirror.sync()
    if damage == "name":
        (mirror.root / "m" / "network.toml").unlink()
    else:
        (mirror.root / "m" / "2").unlink()
    mirror.sync()
    assert names(mirror) == {*store.holds}
    assert (mirror.root / "m" / "network.toml").read_bytes() == b"# nothing"


def test_a_file_that_became_a_link_is_no_copy(mirror: Mirror, store: Store, tmp_path: Path) -> None:
    mirror.sync()
    read(mirror, "m/2")
    secret, path = tmp_path / "secret", mirror.root / "m" / "2" / "model.onnx"
    secret.write_bytes(b"secret")
    os.utime(secret, ns=(0, 0))
    path.unlink()
    path.symlink_to(secret)
    assert read(mirror, "m/2") == {"m/2/model.onnx": b"second"}
    assert secret.read_bytes() == b"secret"


def test_a_copy_goes_on_where_it_stopped(mirror: Mirror, store: Store, tmp_path: Path) -> None:
    mirror.sync()
    store.read.clear()

    def break_down(path: str) -> None:
        if len(store.read) == 1:
            raise PermissionError(errno.EACCES, "gone")

    store.before_read = break_down
    with pytest.raises(PermissionError):
        read(mirror, "m/1")
    store.before_read = lambda path: None
    later = new(store, tmp_path)
    later.sync()
    assert len(read(later, "m/1")) == len(store.read) == 2


def test_a_copy_is_tried_again_when_the_store_is_briefly_away(
    mirror: Mirror, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.0)
    mirror.sync()
    store.read.clear()
    store.away = True

    def come_back(path: str) -> None:
        store.away = len(store.read) < 2

    store.before_read = come_back
    assert read(mirror, "m/2") == {"m/2/model.onnx": b"second"}
    assert len(store.read) == 3


def test_what_is_there_stays_while_the_store_is_away(
    mirror: Mirror, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.0)
    mirror.sync()
    read(mirror, "m/2")
    store.away = True
    with pytest.raises(StoreAway):
        mirror.sync()
    assert mirror.trouble == "memory://store cannot be reached: NoCable"
    assert read(mirror, "m/2") == {"m/2/model.onnx": b"second"}
    with pytest.raises(StoreAway, match=r"m/1/.* cannot be reached"):
        read(mirror, "m/1")
    assert next(each.value for each in mirror.snapshot()) == 0
    store.away = False
    mirror.sync()
    assert mirror.trouble == ""
    assert next(each.value for each in mirror.snapshot()) == 1
    assert len(read(mirror, "m/1")) == 2


def test_a_server_that_has_not_seen_the_store_yet_serves_what_is_copied(
    mirror: Mirror, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.0)
    mirror.sync()
    read(mirror, "m/2")
    later = new(store, tmp_path)
    store.away = True
    assert read(later, "m/2") == {"m/2/model.onnx": b"second"}
    with pytest.raises(StoreAway):
        read(later, "m/1")
    store.away = False
    assert len(read(later, "m/1")) == 2


def test_the_copies_of_what_has_gone_are_removed(mirror: Mirror, store: Store) -> None:
    mirror.sync()
    assert len(copies(mirror)) == 4
    for path in ("m/2/model.onnx", "plain/model.onnx"):
        del store.holds[path]
    mirror.sync()
    mirror.sync()
    assert names(mirror) == {*store.holds}
    assert len(copies(mirror)) == 2


def test_a_copy_that_somebody_reads_is_removed_later(mirror: Mirror, store: Store) -> None:
    mirror.sync()
    place = mirror.root / "m" / "2"
    with mirror.used(place):
        copy = place.resolve()
        del store.holds["m/2/model.onnx"]
        mirror.sync()
        mirror.sync()
        assert not place.exists()
        assert (copy / "model.onnx").read_bytes() == b"second"
    mirror.sync()
    assert not copy.exists()


def test_what_does_not_fit_is_refused_before_it_is_read(store: Store, tmp_path: Path) -> None:
    mirror = new(store, tmp_path, 20)
    mirror.sync()
    store.put("m/2/model.onnx", bytes(30))
    mirror.sync()
    mirror.sync()
    store.read.clear()
    reader = RepositoryFiles(mirror.root, Limits(), mirror=mirror)
    says = r"30 bytes of m/2 do not fit into the 20 that copies may take \(--max-cache-bytes\)$"
    with pytest.raises(ResourceExhausted, match=says):
        reader.newest("m")
    assert store.read == []


def test_what_was_read_least_recently_makes_room(store: Store, tmp_path: Path) -> None:
    for number in range(4):
        store.put(f"n{number}/1/model.onnx", model(number))
    mirror = new(store, tmp_path, 40)  # a description of 9, and three models of 10
    mirror.sync()
    clock = itertools.count(10**9, 10**9)
    for number in (0, 1, 2, 0, 3):
        assert read(mirror, f"n{number}/1") == {f"n{number}/1/model.onnx": model(number)}
        copy = (mirror.root / f"n{number}" / "1").resolve()
        os.utime(copy, ns=(0, next(clock)))  # two reads may have one time
    copied = {number for number in range(4) if mirror.is_copied(mirror.root / f"n{number}" / "1")}
    assert copied == {0, 2, 3}
    assert read(mirror, "m")["m/network.toml"] == b"# nothing"
    assert held(mirror) <= 40
    mirror.sync()
    assert held(mirror) == 39
    assert names(mirror) == {*store.holds}


def test_a_copy_that_fits_does_not_look_at_all_others(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look at a thousand networks would look at each of them a thousand times."""
    mirror.sync()
    monkeypatch.delattr(module.Copies, "_sizes")
    assert read(mirror, "m/2") == {"m/2/model.onnx": b"second"}
    assert held(mirror) == len(b"# nothing" + b"second")


def test_room_that_nobody_has_noted_is_measured(store: Store, tmp_path: Path) -> None:
    mirror = new(store, tmp_path, 30)
    mirror.sync()
    read(mirror, "m/1")
    (mirror.root / ".copies" / ".room").write_text("no number")
    assert read(mirror, "plain") == {"plain/model.onnx": b"plain"}
    assert held(mirror) == len(b"# nothing" + b"first" + b"weights" + b"plain")


def test_what_is_in_use_makes_no_room(store: Store, tmp_path: Path) -> None:
    store.put("a/1/model.onnx", model(1))
    store.put("b/1/model.onnx", model(2))
    mirror = new(store, tmp_path, 20)
    mirror.sync()
    with mirror.used(mirror.root / "a" / "1"):
        with pytest.raises(
            OSError, match=r"of b/1 do not fit .* beside 19 that are in use"
        ) as full:
            read(mirror, "b/1")
        assert full.value.errno == errno.ENOSPC
        assert (mirror.root / "a" / "1" / "model.onnx").read_bytes() == model(1)
    assert read(mirror, "b/1") == {"b/1/model.onnx": model(2)}
    assert not mirror.is_copied(mirror.root / "a" / "1")


def test_an_older_reader_goes_on_with_a_file_that_made_room(store: Store, tmp_path: Path) -> None:
    store.put("a/1/model.onnx", model(1))
    store.put("b/1/model.onnx", model(2))
    mirror = new(store, tmp_path, 20)
    mirror.sync()
    with ExitStack() as opened:
        with mirror.used(mirror.root / "a" / "1"):
            file = opened.enter_context((mirror.root / "a" / "1" / "model.onnx").open("rb"))
        read(mirror, "b/1")
        assert file.read() == model(1)


def test_callers_of_one_network_copy_it_once(store: Store, tmp_path: Path) -> None:
    mirror, other = new(store, tmp_path), new(store, tmp_path)  # as of two servers
    mirror.sync()
    other.sync()
    store.read.clear()
    together = threading.Barrier(8)

    def one(number: int) -> dict[str, bytes]:
        together.wait()
        return read(mirror if number % 2 else other, "m", "m/2")

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(one, range(8)))
    assert all(each["m/2/model.onnx"] == b"second" for each in found)
    assert store.read == ["m/2/model.onnx"]


def test_copies_never_take_more_than_they_may_however_many_read(
    store: Store, tmp_path: Path
) -> None:
    for number in range(8):
        store.put(f"n{number}/1/model.onnx", model(number))
    mirror, other = new(store, tmp_path, 40), new(store, tmp_path, 40)
    mirror.sync()
    other.sync()
    most: list[int] = []

    def weigh(path: str) -> None:
        root = mirror.root / ".copies"
        with (root / ".room").open("r+") as room:
            fcntl.flock(room, fcntl.LOCK_EX)  # nothing makes room or takes it meanwhile
            found = [each.lstat().st_size for each in root.rglob("model.onnx")]
        most.append(sum(found))

    store.before_read = weigh

    def one(number: int) -> bool:
        network = f"n{number % 8}"
        try:
            found = read(mirror if number % 3 else other, f"{network}/1")
        except OSError as error:
            return error.errno == errno.ENOSPC  # the others are in use
        return found == {f"{network}/1/model.onnx": model(number % 8)}

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(one, range(64)))
    assert max(most) <= 31


def test_a_full_disk_is_told_and_not_kept_full(
    mirror: Mirror, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: Iterator[bytes]) -> None:
        if b"first" in b"".join(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_file(path, data)

    mirror.sync()
    reader = RepositoryFiles(mirror.root, Limits(), mirror=mirror)
    del store.holds["m/2/model.onnx"]
    mirror.sync()
    mirror.sync()
    monkeypatch.setattr(module, "write_file", full)
    with pytest.raises(ResourceExhausted, match="No space left on device"):
        reader.newest("m")
    mirror.sync()
    assert held(mirror) == len(b"# nothing")
    monkeypatch.undo()
    assert read(mirror, "m/1")["m/1/model.onnx"] == b"first"


def test_an_object_that_is_also_a_folder_is_left_out(mirror: Mirror, store: Store) -> None:
    store.put("m", b"object")
    store.put("m/1", b"object")
    mirror.sync()
    assert {*store.holds} - names(mirror) == {"m", "m/1"}


def test_a_model_beside_the_networks_is_told_where_to_go_and_other_files_are_left(
    mirror: Mirror, store: Store
) -> None:
    store.put("other.onnx", b"model")
    store.put("README.md", b"read me")
    store.put("config.json", b"{}")
    mirror.sync()
    assert mirror.faults == {"other.onnx": "is a file; move it to other/model.onnx"}
    assert {*store.holds} - names(mirror) == {"other.onnx", "README.md"}
    assert (mirror.root / "config.json").read_bytes() == b"{}"


def test_a_size_that_is_not_told_is_no_size(mirror: Mirror, store: Store) -> None:
    objects = store.objects
    store.objects = lambda: [each._replace(size=-1) for each in objects()]  # type: ignore[method-assign]
    mirror.sync()
    assert mirror.faults["plain"] == "model.onnx: the server does not give it, or not its size"
    assert store.read == []


def test_a_look_does_not_wait_for_ever_behind_one_that_a_store_keeps_waiting(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.server.repository.mirror._PATIENCE_SECONDS", 0.0)
    with mirror._alone(), pytest.raises(BlockingIOError, match="still waits for it"):
        mirror.sync("m")
    mirror.sync("m")


def test_one_server_changes_a_repository_at_a_time(mirror: Mirror, store: Store) -> None:
    descriptor = lock_file(mirror.root / ".lock")
    with pytest.raises(BlockingIOError, match=f"process {os.getpid()} is copying it"):
        mirror.sync()
    os.close(descriptor)
    mirror.sync()
    assert names(mirror) == {*store.holds}


def test_a_stop_ends_a_copy_in_progress(mirror: Mirror, store: Store) -> None:
    mirror.sync()
    store.read.clear()
    store.before_read = lambda path: mirror.stop()
    with pytest.raises(StoreAway, match="shutting down"):
        read(mirror, "m/1")
    assert len(store.read) == 1
    with pytest.raises(StoreAway, match="shutting down"):
        mirror.begin().result()


def test_a_stop_ends_a_wait_for_another_server_s_copy(mirror: Mirror, store: Store) -> None:
    mirror.sync()
    with (mirror.root / "m" / "2" / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(read, mirror, "m/2")
            mirror.stop()
            with pytest.raises(StoreAway, match="shutting down"):
                waits.result()


def test_a_start_goes_on_without_a_store_that_is_silent(
    store: Store, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_LOOK_SECONDS", 0.01)
    server: Any = types.SimpleNamespace(unready=None)
    answered = threading.Event()
    store.before_read = lambda path: answered.wait()
    assert not asyncio.run(ServerCore._is_copied(server, mirror))
    answered.set()
    mirror.sync()
    monkeypatch.setattr(backend, "_LOOK_SECONDS", PATIENCE_SECONDS)
    assert asyncio.run(ServerCore._is_copied(server, mirror))


def test_a_start_does_not_take_what_it_has_copied_itself_for_copies_of_an_earlier_run(
    store: Store, mirror: Mirror, caplog: pytest.LogCaptureFixture
) -> None:
    (mirror.root / ".next").symlink_to(".copies")  # of a server that was killed

    def cut(path: str) -> None:
        if path == "plain/network.toml":
            raise StoreAway(errno.EHOSTUNREACH, "memory://store cannot be reached: NoCable")

    store.put("plain/network.toml", b"# nothing")
    store.before_read = cut
    server: Any = types.SimpleNamespace()
    assert not asyncio.run(ServerCore._is_copied(server, mirror))
    assert mirror.has_networks
    assert "starts without it" in caplog.text


@pytest.mark.parametrize("earlier", [False, True], ids=["first copy", "copies of an earlier run"])
def test_a_start_behind_its_store_is_ready_only_with_the_copies_of_an_earlier_run(
    store: Store, mirror: Mirror, earlier: bool
) -> None:
    if earlier:
        mirror.sync()
    ready: list[bool] = []

    async def copies_in_part(_: Mirror) -> bool:
        mirror.sync()
        return False

    server: Any = types.SimpleNamespace(
        mirror=mirror,
        _is_copied=copies_in_part,
        _startup=types.SimpleNamespace(load=partial(asyncio.sleep, 0)),
        _poller=types.SimpleNamespace(start=lambda behind: None),
        _ready=lambda: ready.append(True),
    )
    asyncio.run(ServerCore.load(server))
    assert bool(ready) is earlier


def test_a_look_that_fails_unexpectedly_has_not_succeeded() -> None:
    def fails() -> None:
        raise KeyError("a defect")

    assert Poller._tried(fails) == "KeyError"
