"""Uploaded models: named by their digest, bounded in bytes and number, and files without a name."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeAlias

import pytest

from headrace.runtime.errors import InvalidArgument, NotFound, ResourceExhausted
from headrace.server.services import uploads as module
from headrace.server.services.uploads import Uploads

Make: TypeAlias = Callable[[int, int], Uploads]


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as stack:

        def made(max_model_bytes: int, max_total_bytes: int) -> Uploads:
            return stack.enter_context(closing(Uploads(max_model_bytes, max_total_bytes)))

        yield made


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def receive(uploads: Uploads, *pieces: bytes) -> str:
    digest, size = asyncio.run(uploads.receive(chunks(*pieces)))
    assert size == sum(map(len, pieces))
    return digest


async def imported(uploads: Uploads, *pieces: bytes, fails: bool = False) -> bytes:
    """What an import reads, in a context of its own."""
    async with uploads.blob(chunks(*pieces)) as blob:
        if fails:
            raise ConnectionError("the caller has gone")
        return bytes(blob)


def test_a_model_is_read_back_by_its_digest(make: Make) -> None:
    uploads = make(100, 1000)
    digest = receive(uploads, b"abc", b"def")
    assert digest == f"sha256:{hashlib.sha256(b'abcdef').hexdigest()}"
    assert [uploads.read(digest), uploads.read(digest)] == [b"abcdef"] * 2


def test_nothing_of_it_has_a_name(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    uploads = make(100, 1000)
    receive(uploads, b"abc")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("pieces", "message"), [((), "empty"), ((b"",), "empty"), ((b"x" * 60, b"x" * 60), "larger")]
)
def test_a_model_has_bytes_and_not_too_many(
    make: Make, pieces: tuple[bytes, ...], message: str
) -> None:
    uploads = make(100, 1000)
    with pytest.raises(InvalidArgument, match=message) as caught:
        receive(uploads, *pieces)
    assert caught.value.field == "chunk"


def test_the_least_recently_used_go_for_a_new_one(make: Make) -> None:
    uploads = make(100, 250)
    first, second = receive(uploads, b"1" * 100), receive(uploads, b"2" * 100)
    uploads.read(first)
    third = receive(uploads, b"3" * 100)
    assert uploads.read(first) == b"1" * 100
    assert uploads.read(third) == b"3" * 100
    with pytest.raises(NotFound, match="upload it"):
        uploads.read(second)


def test_the_same_model_is_kept_once(make: Make) -> None:
    uploads = make(100, 200)
    other = receive(uploads, b"2" * 50)
    for _ in range(5):
        assert uploads.read(receive(uploads, b"1" * 70)) == b"1" * 70
    assert uploads.read(other) == b"2" * 50


def test_what_is_on_its_way_counts_and_what_failed_does_not(make: Make) -> None:
    uploads = make(200, 200)

    async def both() -> str:
        started, go = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"s" * 150
            started.set()
            await go.wait()
            raise ConnectionError("the caller has gone")

        first = asyncio.create_task(uploads.receive(slow()))
        await started.wait()
        with pytest.raises(ResourceExhausted, match="200 bytes allowed"):
            await uploads.receive(chunks(b"x" * 100))
        go.set()
        with pytest.raises(ConnectionError):
            await first
        digest, _ = await uploads.receive(chunks(b"y" * 200))
        return digest

    assert uploads.read(asyncio.run(both())) == b"y" * 200


def test_a_call_that_sends_nothing_holds_no_file(make: Make) -> None:
    uploads = make(100, 1000)

    async def idle() -> int:
        started, go = asyncio.Event(), asyncio.Event()

        async def silent() -> AsyncIterator[bytes]:
            started.set()
            await go.wait()
            yield b"late"

        before = descriptors()
        calls = [asyncio.create_task(uploads.receive(silent())) for _ in range(5)]
        await started.wait()
        more = descriptors() - before
        go.set()
        await asyncio.gather(*calls)
        return more

    assert asyncio.run(idle()) == 0
    with pytest.raises(InvalidArgument, match="the blob is empty"):
        asyncio.run(imported(uploads))


def test_that_there_is_no_folder_for_temporary_files_names_none(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(*_: object, **__: object) -> None:
        folders = f"No usable temporary directory found in {[str(tmp_path)]}"
        raise FileNotFoundError(errno.ENOENT, folders)

    monkeypatch.setattr(tempfile, "TemporaryFile", nowhere)
    with pytest.raises(ResourceExhausted, match="no room for an upload") as caught:
        receive(make(100, 1000), b"abc")
    assert str(tmp_path) not in caught.value.message


def test_there_are_at_most_so_many(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MODELS", 3)
    uploads = make(100, 1000)
    digests = [receive(uploads, bytes([n])) for n in range(5)]
    for digest in digests[:2]:
        with pytest.raises(NotFound):
            uploads.read(digest)
    assert [uploads.read(digest) for digest in digests[2:]] == [b"\2", b"\3", b"\4"]


@pytest.mark.parametrize("digest", ["", "sha256:xyz", "../../etc/passwd", "md5:" + "0" * 64])
def test_a_digest_has_one_spelling(make: Make, digest: str) -> None:
    with pytest.raises(InvalidArgument, match="64 hexadecimal") as caught:
        make(100, 1000).read(digest)
    assert caught.value.field == "model.digest"


def test_nothing_is_left_when_it_closes(make: Make) -> None:
    uploads = make(100, 1000)
    digest = receive(uploads, b"abc")
    uploads.close()
    with pytest.raises(NotFound):
        uploads.read(digest)


def test_a_model_that_is_being_read_holds_up_no_upload_and_may_go_meanwhile(make: Make) -> None:
    uploads = make(100, 100)
    first = receive(uploads, b"1" * 100)
    being_read = uploads.read(first)
    second = receive(uploads, b"2" * 100)
    assert being_read == b"1" * 100
    assert uploads.read(second) == b"2" * 100
    with pytest.raises(NotFound):
        uploads.read(first)


def test_a_blob_may_have_the_backends_bytes_beside_its_network(make: Make) -> None:
    uploads = make(100, 2**30)
    with pytest.raises(InvalidArgument, match=r"model is larger than the 100 .*max_model_bytes"):
        receive(uploads, b"1" * 101)
    data = b"1" * 200
    assert asyncio.run(imported(uploads, data)) == data
    with pytest.raises(InvalidArgument, match=r"blob is larger than"):
        asyncio.run(imported(uploads, bytes(9 * 2**20)))


def test_a_blob_counts_while_it_is_imported_and_leaves_nothing_behind(make: Make) -> None:
    uploads = make(100, 100)
    before = descriptors()

    async def both() -> memoryview:
        async with uploads.blob(chunks(b"1" * 60, b"2" * 40)) as blob:
            with pytest.raises(ResourceExhausted):
                await uploads.receive(chunks(b"3"))
            return blob

    assert asyncio.run(both()) == b"1" * 60 + b"2" * 40, "it is still mapped"
    assert descriptors() == before
    receive(uploads, b"4" * 100)  # all room is there again
    with pytest.raises(ConnectionError):
        asyncio.run(imported(uploads, b"5" * 100, fails=True))
    receive(uploads, b"6" * 100)


def test_an_upload_is_its_owner_s_alone_and_others_cannot_tell_that_it_is_there() -> None:
    with closing(Uploads(100, 1000)) as uploads:
        digest, _ = asyncio.run(uploads.receive(chunks(b"abc"), "a"))
        assert bytes(uploads.read(digest, "a")) == b"abc"
        never = f"sha256:{'0' * 64}"
        for owner in ("b", ""):
            told = []
            for each in (digest, never):
                with pytest.raises(NotFound) as error:
                    uploads.read(each, owner)
                told.append((str(error.value), error.value.field))
            assert told[0] == told[1]
        asyncio.run(uploads.receive(chunks(b"abc"), "b"))
        assert bytes(uploads.read(digest, "b")) == b"abc"


def test_an_owner_s_uploads_make_room_for_each_other_and_stay_within_the_owner_s_limit() -> None:
    with closing(Uploads(100, 1000, 10)) as uploads:
        other, _ = asyncio.run(uploads.receive(chunks(b"other"), "b"))
        first, _ = asyncio.run(uploads.receive(chunks(b"12345678"), "a"))
        second, _ = asyncio.run(uploads.receive(chunks(b"abcdefgh"), "a"))
        assert bytes(uploads.read(second, "a")) == b"abcdefgh"
        with pytest.raises(NotFound):
            uploads.read(first, "a")
        with pytest.raises(ResourceExhausted, match="the 10 bytes that one client may have"):
            asyncio.run(uploads.receive(chunks(b"12345678", b"9012"), "a"))
        assert bytes(uploads.read(other, "b")) == b"other"


def test_an_owner_drops_its_own_uploads_before_those_of_others() -> None:
    with closing(Uploads(100, 12)) as uploads:
        theirs, _ = asyncio.run(uploads.receive(chunks(b"12345"), "b"))
        for number in range(5):
            asyncio.run(uploads.receive(chunks(b"own %d" % number), "a"))
        assert bytes(uploads.read(theirs, "b")) == b"12345"
