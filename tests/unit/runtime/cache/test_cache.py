"""Compiled networks on disk: what is trusted, what makes room, and what a crash leaves."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.cache import cache as network_cache
from headrace.runtime.cache import room
from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.entry import CacheKey, EntryRefused
from headrace.runtime.cache.room import COMPILED as SUFFIX
from headrace.runtime.metrics import families
from headrace.runtime.system.atomic_file import write_file
from headrace.testing import counted
from tests.support.child import Child

_SECRET = b"k" * 32
_KEY = CacheKey('{"network": 1}')
_OTHER = CacheKey('{"network": 2}')
_MANY_BYTES = 2**20

_WRITER_THAT_STOPS_HALF_WAY = """
import sys
from pathlib import Path
from headrace.runtime.cache import cache as network_cache
from headrace.runtime.cache import entry as network_cache_entry
from headrace.runtime.cache.entry import CacheKey

def write(*arguments, whole=network_cache_entry.write):
    first, *others = whole(*arguments)
    yield first
    print("writing", flush=True)
    sys.stdin.readline()
    yield from others

network_cache_entry.write = write
cache = network_cache.NetworkCache(Path(sys.argv[1]), b"k" * 32, 2**20)
cache.write("default", CacheKey('{"network": 1}'), b"native")
print("written", flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(root: Path) -> NetworkCache:
    return NetworkCache(root, _SECRET, _MANY_BYTES)


@pytest.fixture
def start_writers(root: Path) -> Iterator[Callable[[int], list[Child]]]:
    """Starts processes that are all in the middle of writing the same entry."""
    with ExitStack() as stack:

        def start(count: int) -> list[Child]:
            writers = [
                stack.enter_context(Child(_WRITER_THAT_STOPS_HALF_WAY, root)) for _ in range(count)
            ]
            assert [writer.line() for writer in writers] == ["writing"] * count
            return writers

        yield start


def _path(root: Path, key: CacheKey = _KEY, folder: str = "default") -> Path:
    return root / folder / (key.name + SUFFIX)


# -- what is kept and given back --


def test_what_was_written_is_read_again_by_whoever_has_the_key(
    cache: NetworkCache, root: Path
) -> None:
    assert cache.read("default", _KEY) is None
    cache.write("default", _KEY, b"native")
    assert cache.read("default", _KEY) == b"native"
    assert NetworkCache(root, _SECRET, _MANY_BYTES).read("default", _KEY) == b"native"
    assert cache.read("default", _OTHER) is None


def test_folders_keep_entries_apart(cache: NetworkCache) -> None:
    cache.write("team-a", _KEY, b"a")
    assert cache.read("team-b", _KEY) is None
    cache.write("team-b", _KEY, b"b")
    assert cache.read("team-a", _KEY) == b"a"


def test_files_and_folders_are_for_the_server_alone(cache: NetworkCache, root: Path) -> None:
    cache.write("team-a", _KEY, b"native")
    modes = [
        stat.S_IMODE(path.stat().st_mode)
        for path in (root, root / "team-a", _path(root, folder="team-a"))
    ]
    assert modes == [0o700, 0o700, 0o600]


def test_writing_an_entry_again_replaces_it(cache: NetworkCache) -> None:
    cache.write("default", _KEY, b"old")
    cache.write("default", _KEY, b"new")
    assert cache.read("default", _KEY) == b"new"


# -- what is refused --


def _foreign(root: Path, path: Path) -> None:
    NetworkCache(root / "elsewhere", b"another" * 5, _MANY_BYTES).write("x", _KEY, b"evil")
    _path(root / "elsewhere", folder="x").replace(path)


def _of_another_network(root: Path, path: Path) -> None:
    NetworkCache(root, _SECRET, _MANY_BYTES).write("default", _OTHER, b"another")
    _path(root, _OTHER).replace(path)


def _shortened(_: Path, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _changed(_: Path, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"native\0")] ^= 1
    path.write_bytes(data)


def _garbage(_: Path, path: Path) -> None:
    path.write_bytes(b"planted")


def _other_format(_: Path, path: Path) -> None:
    path.write_bytes(b"planted, and longer than what every entry begins with")


def _link(root: Path, path: Path) -> None:
    path.replace(root / "target")
    path.symlink_to(root / "target")


def _folder_link(root: Path, path: Path) -> None:
    path.parent.replace(root / "target")
    path.parent.symlink_to(root / "target", target_is_directory=True)


def _pipe(_: Path, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(_: Path, path: Path) -> None:
    path.unlink()
    path.mkdir()


def _folder_is_a_file(_: Path, path: Path) -> None:
    path.unlink()
    path.parent.rmdir()
    path.parent.write_bytes(b"")


def _huge(_: Path, path: Path) -> None:
    os.truncate(path, 2 * _MANY_BYTES)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_foreign, "not signed with this server's key"),
        (_of_another_network, "another network's"),
        (_shortened, "damaged"),
        (_changed, "not signed with this server's key"),
        (_garbage, "damaged"),
        (_other_format, "not an entry"),
        (_link, "symbolic links"),
        (_folder_link, "directory"),
        (_pipe, "not a file"),
        (_directory, "not a file"),
        (_folder_is_a_file, "directory"),
        (_huge, "larger than the cache"),
    ],
)
def test_an_entry_that_is_not_as_the_server_wrote_it_is_refused(
    cache: NetworkCache, root: Path, spoil: Callable[[Path, Path], None], why: str
) -> None:
    cache.write("default", _KEY, b"native\0")
    spoil(root, _path(root))
    with pytest.raises(EntryRefused, match=why):
        cache.read("default", _KEY)


@pytest.mark.parametrize("spoil", [_foreign, _shortened, _garbage, _link, _pipe, _huge])
def test_a_refused_entry_is_replaced_by_what_was_compiled(
    cache: NetworkCache, root: Path, spoil: Callable[[Path, Path], None]
) -> None:
    cache.write("default", _KEY, b"native\0")
    spoil(root, _path(root))
    cache.write("default", _KEY, b"anew")
    assert cache.read("default", _KEY) == b"anew"
    if (root / "target").exists():
        assert b"anew" not in (root / "target").read_bytes(), "a link was written through"


def test_nothing_is_written_through_a_link_to_a_folder(
    cache: NetworkCache, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "team-a").symlink_to(outside, target_is_directory=True)
    with pytest.raises(NotADirectoryError):
        cache.write("team-a", _KEY, b"native")
    assert list(outside.iterdir()) == []


@settings(max_examples=20, deadline=None)  # each writes files, and flushes them to the disk
@given(st.binary(max_size=64), st.integers(0, 10_000))
def test_no_change_of_a_byte_gets_through(
    tmp_path_factory: pytest.TempPathFactory, native: bytes, place: int
) -> None:
    root = tmp_path_factory.getbasetemp() / "changed"
    cache = NetworkCache(root, _SECRET, _MANY_BYTES)
    cache.write("default", _KEY, native)
    data = bytearray(_path(root).read_bytes())
    data[place % len(data)] ^= 0x40
    _path(root).write_bytes(data)
    with pytest.raises(EntryRefused):
        cache.read("default", _KEY)


# -- room --


def _numbered(number: int) -> CacheKey:
    return CacheKey(f'{{"network": {number}}}')


def _held(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def test_the_least_recently_used_go_for_a_new_one(tmp_path: Path) -> None:
    cache = NetworkCache(tmp_path, _SECRET, 400_000)
    for number in range(3):
        cache.write("default", _numbered(number), bytes(100_000))
        os.utime(_path(tmp_path, _numbered(number)), (number, number))
    assert cache.read("default", _numbered(0)) is not None, "which uses it"
    cache.write("other", _numbered(3), bytes(100_000))
    kept = [n for n in range(3) if cache.read("default", _numbered(n)) is not None]
    assert kept == [0, 2]
    assert cache.read("other", _numbered(3)) is not None
    assert counted.number(cache.counters.snapshot(), families.CACHE_EVICTED) == 1
    assert counted.number(cache.counters.snapshot(), families.CACHE_BYTES) == _held(tmp_path)


@settings(max_examples=20, deadline=None)  # each writes files, and flushes them to the disk
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90_000)), max_size=12))
def test_entries_never_take_more_than_they_may(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]]
) -> None:
    root = tmp_path_factory.getbasetemp() / "bounded"
    cache = NetworkCache(root, _SECRET, 100_000)
    for number, size in writes:
        cache.write("default", _numbered(number), bytes(size))
        assert cache.read("default", _numbered(number)) == bytes(size)
        assert _held(root) <= 100_000


def test_an_entry_larger_than_the_whole_cache_drives_out_no_other(tmp_path: Path) -> None:
    cache = NetworkCache(tmp_path, _SECRET, 100_000)
    cache.write("default", _KEY, b"small")
    with pytest.raises(ValueError, match="more than the 100000"):
        cache.write("default", _OTHER, bytes(100_000))
    assert cache.read("default", _KEY) == b"small"


def test_a_cache_that_has_become_smaller_is_made_to_fit_at_the_start(tmp_path: Path) -> None:
    cache = NetworkCache(tmp_path, _SECRET, 400_000)
    for number in range(3):
        cache.write("default", _numbered(number), bytes(100_000))
    NetworkCache(tmp_path, _SECRET, 150_000)
    assert _held(tmp_path) <= 150_000


def test_many_small_entries_are_bounded_in_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_MAX_ENTRIES", 3)
    cache = NetworkCache(tmp_path, _SECRET, _MANY_BYTES)
    for number in range(5):
        cache.write(f"folder-{number}", _numbered(number), b"")
        os.utime(_path(tmp_path, _numbered(number), f"folder-{number}"), (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder-2", "folder-3", "folder-4"]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were listed to know what the cache holds."""
    listed: list[Path] = []
    listing = room._listed

    def recorded(folder: Path) -> list[os.DirEntry[str]]:
        listed.append(folder)
        return listing(folder)

    monkeypatch.setattr(room, "_listed", recorded)
    return listed


def test_there_is_room_for_thousands_of_networks_with_several_entries_each(tmp_path: Path) -> None:
    (tmp_path / "default").mkdir()
    for number in range(5_000):
        (tmp_path / "default" / f"{number:064x}{SUFFIX}").touch()
    NetworkCache(tmp_path, _SECRET, 2**30).write("default", _KEY, b"native")
    assert len(list((tmp_path / "default").iterdir())) == 5_001


def test_a_write_does_not_look_at_the_other_entries(tmp_path: Path, looks: list[Path]) -> None:
    cache = NetworkCache(tmp_path, _SECRET, 2**30)
    looks.clear()
    for number in range(5):
        cache.write("default", _numbered(number), b"native")
    assert looks == []
    assert counted.number(cache.counters.snapshot(), families.CACHE_BYTES) == 5 * 4096


def test_of_a_full_cache_so_many_entries_leave_that_the_next_writes_need_no_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[Path]
) -> None:
    monkeypatch.setattr(room, "_PART", 4)
    monkeypatch.setattr(room, "_MAX_ENTRIES", 12)
    cache = NetworkCache(tmp_path, _SECRET, _MANY_BYTES)
    for number in range(12):
        cache.write("default", _numbered(number), b"native")
    looks.clear()
    for number in range(12, 15):
        cache.write("default", _numbered(number), b"native")
    assert looks.count(tmp_path) == 1
    assert len(list((tmp_path / "default").iterdir())) == 12


def test_what_another_process_writes_is_noticed_after_a_part_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_PART", 4)
    caches = [NetworkCache(tmp_path, _SECRET, 100_000) for _ in range(2)]
    most = 0
    for number in range(40):
        caches[number % 2].write("default", _numbered(number), bytes(5_000))
        most = max(most, _held(tmp_path))
    assert most <= 150_000, "each of them may exceed the limit by a part"
    assert caches[0].read("default", _numbered(39)) is not None, "the newest one stays"


def test_what_others_put_into_the_folder_is_neither_counted_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "notes.txt").write_bytes(bytes(200_000))
    cache = NetworkCache(tmp_path, _SECRET, 100_000)
    cache.write("default", _KEY, b"native")
    assert (tmp_path / "default" / "notes.txt").exists()
    assert counted.number(cache.counters.snapshot(), families.CACHE_BYTES) < 10_000


# -- other processes, and a disk that is full --


def test_a_writer_that_is_killed_leaves_no_entry_and_its_rest_is_removed(
    root: Path, start_writers: Callable[[int], list[Child]]
) -> None:
    (writer,) = start_writers(1)
    writer.kill()
    assert len(list((root / "default").iterdir())) == 1, "what it had written so far"
    cache = NetworkCache(root, _SECRET, _MANY_BYTES)
    assert list((root / "default").iterdir()) == []
    assert cache.read("default", _KEY) is None
    cache.write("default", _KEY, b"native")
    assert cache.read("default", _KEY) == b"native"


def test_two_processes_write_the_same_entry_at_once_while_a_third_starts(
    root: Path, start_writers: Callable[[int], list[Child]]
) -> None:
    writers = start_writers(2)
    cache = NetworkCache(root, _SECRET, _MANY_BYTES)
    assert cache.read("default", _KEY) is None, "half an entry is none"
    for writer in writers:
        assert writer.finish() == 0
        assert writer.line() == "written"
        assert cache.read("default", _KEY) == b"native"
    assert len(list((root / "default").iterdir())) == 1


def test_a_full_disk_leaves_the_entry_as_it_was_and_no_rest(tmp_path: Path) -> None:
    root = tmp_path / "small"
    root.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(root)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no file system of a chosen size can be mounted here")
    try:
        cache = NetworkCache(root, _SECRET, _MANY_BYTES)
        cache.write("default", _KEY, b"small")
        with pytest.raises(OSError, match="No space left"):
            cache.write("default", _KEY, bytes(2**19))
        assert cache.read("default", _KEY) == b"small"
        assert len(list((root / "default").iterdir())) == 1
    finally:
        subprocess.run(["umount", str(root)], check=True)


def test_a_disk_that_refuses_the_last_flush_leaves_no_rest(
    cache: NetworkCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        cache.write("default", _KEY, b"native")
    assert list((root / "default").iterdir()) == []


def test_a_folder_that_another_server_removes_meanwhile_is_made_again(
    cache: NetworkCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []

    def write(path: Path, data: Iterator[bytes]) -> None:
        if not removed:
            path.parent.rmdir()
            removed.append(path.parent)
        write_file(path, data)

    monkeypatch.setattr(network_cache, "write_file", write)
    cache.write("team-a", _KEY, b"native")
    assert removed == [root / "team-a"]
    assert cache.read("team-a", _KEY) == b"native"


def test_a_place_that_is_no_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        NetworkCache(tmp_path / "file", _SECRET, _MANY_BYTES)
