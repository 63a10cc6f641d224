"""A folder of a store: which addresses open, what a listing has, and what an error tells."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.server.repository import remote
from headrace.server.repository.remote import Object, ObjectChanged, RemoteFolder, StoreAway
from tests.support.ports import held_port


class Pages(SimpleHTTPRequestHandler):
    """Shows index pages. What a hidden file names in its folder has the status that it says."""

    def send_head(self) -> Any:
        status = Path(self.directory, ".status")
        if status.exists():
            self.send_error(int(status.read_text()), "the secret text of a server")
            return None
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(web: ThreadingHTTPServer) -> RemoteFolder:
    return RemoteFolder(f"http://127.0.0.1:{web.server_port}")


def put(root: Path, path: str, data: bytes = b"data") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)


def test_an_address_that_nothing_opens_names_what_to_install() -> None:
    with pytest.raises(InvalidArgument, match=r"nothing opens nosuch:// here: install") as raised:
        RemoteFolder("nosuch://place")
    assert raised.value.field == "model_repository"


def test_a_web_server_is_listed_by_its_index_pages(folder: RemoteFolder, tmp_path: Path) -> None:
    put(tmp_path, "m/1/model.onnx", b"model")
    put(tmp_path, "m/with space & more.txt")
    put(tmp_path, "m/.hidden/file")
    found = {each.path: each for each in folder.objects()}
    assert {path: each.size for path, each in found.items()} == {
        "m/1/model.onnx": 5,
        "m/with space & more.txt": 4,
    }
    assert all(each.tag for each in found.values())
    assert b"".join(folder.pieces(found["m/1/model.onnx"])) == b"model"
    assert b"".join(folder.pieces(found["m/with space & more.txt"])) == b"data"


@pytest.mark.parametrize("size", [3, 7])
def test_an_object_of_another_size_is_refused(
    folder: RemoteFolder, tmp_path: Path, size: int
) -> None:
    put(tmp_path, "m/model.onnx", b"model")
    (each,) = folder.objects()
    with pytest.raises(ObjectChanged, match=r"model\.onnx changed while it was copied"):
        list(folder.pieces(each._replace(size=size)))


def test_more_objects_than_a_listing_may_have_are_refused(
    folder: RemoteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_OBJECTS", 3)
    for number in range(3):
        put(tmp_path, f"m/{number}.txt")
    with pytest.raises(OSError, match="more than 3 objects; name a smaller folder"):
        folder.objects()


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (403, PermissionError, "may not be read; give the server credentials that may"),
        (401, PermissionError, "may not be read; give the server credentials that may"),
        (404, FileNotFoundError, "there is no http://.*"),
        (503, StoreAway, "cannot be reached: status 503"),
    ],
)
def test_a_web_server_that_refuses_is_told_by_its_status(
    folder: RemoteFolder, tmp_path: Path, status: int, kind: type[OSError], says: str
) -> None:
    put(tmp_path, ".status", str(status).encode())
    with pytest.raises(kind) as raised:
        folder.objects()
    assert re.search(says, str(raised.value.strerror))
    assert "secret" not in str(raised.value)


def test_a_web_server_that_does_not_answer_is_away() -> None:
    folder = RemoteFolder(f"http://127.0.0.1:{held_port()}")
    with pytest.raises(StoreAway, match="cannot be reached: ") as raised:
        folder.objects()
    assert raised.value.errno == errno.EHOSTUNREACH


class Names:
    """A file system that lists names, as hostile ones as somebody may give objects."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def invalidate_cache(self) -> None: ...

    def find(self, place: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        return {each: {"name": each, "type": "file", "size": 1, "etag": "x"} for each in self.names}


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "m/../../evil",
        "m/./model.onnx",
        "m//model.onnx",
        "/etc/passwd",
        "m/",
        "",
        ".hidden/model.onnx",
        "m/.copies/x",
        "m/mo\0del",
        "m/mo\ndel",
        "m/\udce4",
        f"m/{'x' * 256}",
        "m/" + "d/" * 50 + "x",
    ],
)
def test_a_name_that_no_file_of_a_repository_has_is_left_out(name: str, tmp_path: Path) -> None:
    folder = RemoteFolder(f"file://{tmp_path}")
    root = folder._place
    folder._files = Names(f"{root}/{name}", f"{root}/m/model.onnx", "elsewhere/m/model.onnx")
    assert folder.objects() == [Object("m/model.onnx", 1, "x", f"{root}/m/model.onnx")]
