"""A folder of a store: which addresses open, what a listing has, and what an error tells."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import os
import re
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def serving(handler: Any) -> Iterator[int]:
    """Has a web server, and gives its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RemoteFolder]:
    with serving(partial(Pages, directory=str(tmp_path))) as port:
        yield RemoteFolder(f"http://127.0.0.1:{port}")


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


@pytest.mark.parametrize("status", [403, 404])
def test_what_a_web_server_refuses_alone_has_no_size(tmp_path: Path, status: int) -> None:
    """So its network has a fault, and the others are served."""

    class Refuses(Pages):
        def send_head(self) -> Any:
            if "lost" in self.path:
                self.send_error(status)
                return None
            return super().send_head()

    for path in ("m/model.onnx", "n/lost.onnx", "lost+found/model.onnx"):
        put(tmp_path, path)
    with serving(partial(Refuses, directory=str(tmp_path))) as port:
        found = RemoteFolder(f"http://127.0.0.1:{port}").objects()
    assert {each.path: each.size for each in found} == {
        "m/model.onnx": 4,
        "n/lost.onnx": -1,
        "lost+found/index page": -1,
    }


def test_a_web_server_that_does_not_answer_is_away() -> None:
    folder = RemoteFolder(f"http://127.0.0.1:{held_port()}")
    with pytest.raises(StoreAway, match="cannot be reached: ") as raised:
        folder.objects()
    assert raised.value.errno == errno.EHOSTUNREACH


@pytest.mark.parametrize(
    "link",
    [
        "/outside/model.onnx",
        "../outside/model.onnx",
        "m/../../outside/model.onnx",
        "http://127.0.0.1:{port}/outside/model.onnx",
        "http://localhost:{port}/models/other.onnx",
        "https://127.0.0.1:{port}/models/other.onnx",
        "//elsewhere.invalid/models/model.onnx",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "a%2f..%2f..%2foutside",
        "%2e%2e/outside",
        "mo%00del.onnx",
        "mo%0adel.onnx",
        "m/deep/model.onnx",
        "",
        ".",
        "./",
        "/models/",
        "../",
        "?C=N;O=D",
        "m#part",
        ".hidden/",
    ],
)
def test_a_hostile_link_of_an_index_page_is_not_asked_for(tmp_path: Path, link: str) -> None:
    asked: list[str] = []

    class Hostile(Pages):
        def send_head(self) -> Any:
            asked.append(f"{self.headers['Host']}{self.path}")
            if not self.path.endswith("/"):
                return super().send_head()
            text = link.replace("{port}", self.headers["Host"].rpartition(":")[2])
            page = f"<a href=\"{text}\">x</a> <A class=y HREF = 'good%20one.onnx'>y</A>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            return io.BytesIO(page)

    put(tmp_path, "models/good one.onnx")
    with serving(partial(Hostile, directory=str(tmp_path))) as port:
        found = RemoteFolder(f"http://127.0.0.1:{port}/models").objects()
    assert [each.path for each in found] == ["good one.onnx"]
    host = f"127.0.0.1:{port}"
    assert asked == [f"{host}/models/", f"{host}/models/good%20one.onnx"]


def test_an_index_page_is_bounded(tmp_path: Path) -> None:
    class Endless(Pages):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # the reader has enough
                while True:
                    self.wfile.write(b"<a href='x'>" * 10_000)

    with (
        serving(partial(Endless, directory=str(tmp_path))) as port,
        pytest.raises(OSError, match=r"an index page of .* has more than 4,194,304 bytes"),
    ):
        RemoteFolder(f"http://127.0.0.1:{port}").objects()


def test_folders_that_hold_themselves_are_left_at_some_depth(tmp_path: Path) -> None:
    put(tmp_path, "m/model.onnx")
    (tmp_path / "m" / "m").symlink_to(tmp_path / "m")
    with serving(partial(Pages, directory=str(tmp_path))) as port:
        found = RemoteFolder(f"http://127.0.0.1:{port}").objects()
    assert max(each.path.count("/") for each in found) < 10


def test_a_compressed_body_is_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(1 << 20))

    class Bomb(Pages):
        def end_headers(self) -> None:
            if not self.path.endswith("/"):
                self.send_header("Content-Encoding", "gzip")
            super().end_headers()

    put(tmp_path, "model.onnx", bomb)
    each = Object("model.onnx", len(bomb), "", "")
    with serving(partial(Bomb, directory=str(tmp_path))) as port:
        folder = RemoteFolder(f"http://127.0.0.1:{port}")
        (found,) = folder.objects()
        assert found.size == -1  # a server that compresses does not tell the size
        with pytest.raises(ObjectChanged):  # and so it is never the one of a listing
            list(folder.pieces(each._replace(place=found.place)))


class Redirects(Pages):
    """Leads each request for a file to an address."""

    to, header = "", "Location"

    def send_head(self) -> Any:
        if self.path.endswith("/"):
            return super().send_head()
        self.send_response(302)
        self.send_header(self.header, self.to)
        self.end_headers()
        return None


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://["])
def test_a_redirect_away_from_the_web_is_not_followed(tmp_path: Path, to: str) -> None:
    class ToFile(Redirects):
        pass

    ToFile.to = to
    put(tmp_path, "passwd")
    with serving(partial(ToFile, directory=str(tmp_path))) as port:
        folder = RemoteFolder(f"http://127.0.0.1:{port}")
        with pytest.raises(OSError, match=r"cannot be reached|there is no"):
            folder.objects()
        with pytest.raises(OSError, match=r"cannot be reached|there is no"):
            list(folder.pieces(Object("passwd", 4, "", f"http://127.0.0.1:{port}/passwd")))


@pytest.mark.parametrize("header", ["Location", "URI"])
@pytest.mark.parametrize(("secure", "follows"), [(False, True), (True, False)])
def test_a_redirect_from_https_to_http_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool, follows: bool, header: str
) -> None:
    """The server here speaks http alone. The folder takes it for one that speaks https."""
    put(tmp_path, "model.onnx")
    options = remote._options
    monkeypatch.setattr(remote, "_options", lambda _: options("https" if secure else "http"))

    class ToHttp(Redirects):
        pass

    with (
        serving(partial(Pages, directory=str(tmp_path))) as other,
        serving(partial(ToHttp, directory=str(tmp_path))) as port,
    ):
        ToHttp.header = header
        ToHttp.to = f"http://127.0.0.1:{other}/model.onnx"
        folder = RemoteFolder(f"http://127.0.0.1:{port}")
        if follows:
            assert [each.path for each in folder.objects()] == ["model.onnx"]
        else:
            with pytest.raises(StoreAway, match="a redirect leads away from https"):
                folder.objects()


@pytest.mark.parametrize("sends", [b"", b"m"])
def test_a_store_that_falls_silent_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sends: bytes
) -> None:
    asked = threading.Event()

    class Silent(Pages):
        def copyfile(self, source: Any, outputfile: Any) -> None:
            if self.path.endswith("/"):
                return super().copyfile(source, outputfile)
            outputfile.write(sends)
            outputfile.flush()
            asked.wait()
            return None

    put(tmp_path, "model.onnx", b"model")
    with serving(partial(Silent, directory=str(tmp_path))) as port:
        (each,) = RemoteFolder(f"http://127.0.0.1:{port}").objects()
        monkeypatch.setattr(remote, "_READ_SECONDS", 0.05)
        folder = RemoteFolder(f"http://127.0.0.1:{port}")
        try:
            with pytest.raises(StoreAway, match=r"model\.onnx cannot be reached: .*Timeout"):
                list(folder.pieces(each))
        finally:
            asked.set()


def test_a_store_that_sends_by_drops_is_given_up(
    folder: RemoteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_PIECE_BYTES", 1)
    put(tmp_path, "model.onnx", bytes(10_000))
    (each,) = folder.objects()
    clock = itertools.count(0, 59)
    monkeypatch.setattr(remote, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    got: list[bytes] = []
    with pytest.raises(StoreAway, match="TimeoutError"):
        got.extend(folder.pieces(each))
    assert got == [b"\0"]
    monkeypatch.setattr(remote, "_PAGE_BYTES", 10)
    with pytest.raises(StoreAway, match="TimeoutError"):
        folder.objects()


def test_an_object_that_is_another_one_of_the_same_size_is_refused(
    folder: RemoteFolder, tmp_path: Path
) -> None:
    put(tmp_path, "model.onnx", b"older")
    (each,) = folder.objects()
    os.utime(tmp_path / "model.onnx", (10**9, 10**9))
    with pytest.raises(ObjectChanged):
        list(folder.pieces(each))


class RefusingS3(Pages):
    """Speaks as S3 does when it refuses."""

    status, code = 0, ""

    def send_head(self) -> Any:
        said = f"<Error><Code>{self.code}</Code><Message>secret text</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        return io.BytesIO(said)


@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (403, "InvalidAccessKeyId", PermissionError, "may not be read .InvalidAccessKeyId.; give"),
        (400, "ExpiredToken", PermissionError, "may not be read .ExpiredToken.; give"),
        (404, "NoSuchBucket", FileNotFoundError, "there is no s3://models/m"),
        (400, "AuthorizationHeaderMalformed", OSError, "was refused: status 400 .Authorization"),
        (400, "&lt;script&gt;", OSError, "was refused: status 400$"),
        pytest.param(
            301,
            "PermanentRedirect",
            OSError,
            "is in another region, .*; set AWS_DEFAULT_REGION",
            marks=pytest.mark.long,
        ),
        (503, "SlowDown", StoreAway, "cannot be reached: status 503 .SlowDown."),
        (500, "InternalError", StoreAway, "cannot be reached: status 500 .InternalError."),
    ],
)
def test_what_s3_refuses_is_told_by_its_word_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    kind: type[OSError],
    says: str,
) -> None:
    class Refusing(RefusingS3):
        pass

    Refusing.status, Refusing.code = status, code
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with serving(partial(Refusing, directory=str(tmp_path))) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{port}")
        with pytest.raises(kind, match=says) as raised:
            RemoteFolder("s3://models/m").objects()
    assert type(raised.value) is kind  # a start waits for a store that is away, and for no other
    assert "secret" not in str(raised.value)


def test_a_server_without_credentials_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{held_port()}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    with pytest.raises(PermissionError, match="the server has no credentials for s3://models/m"):
        RemoteFolder("s3://models/m").objects()


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
