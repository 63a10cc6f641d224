"""What holds for a folder in Google Cloud Storage, of which this is an emulator, and in a hub as
that of Hugging Face. `tests/integration/test_remote_repository.py` has S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote
from urllib.request import Request, urlopen

import fsspec.config
import pytest
from fsspec.registry import _registry

from headrace.server.repository import remote
from headrace.server.repository.mirror import Mirror
from headrace.server.repository.remote import ObjectChanged, RemoteFolder, StoreAway
from tests.support.hub import Hub, hub


class Store(Protocol):
    @property
    def address(self) -> str: ...

    def put(self, path: str, data: bytes) -> None: ...

    def remove(self, path: str) -> None: ...


class GoogleStorage(NamedTuple):
    endpoint: str
    address: str = "gs://models/folder"

    def put(self, path: str, data: bytes) -> None:
        name = quote(f"folder/{path}", safe="")
        place = f"{self.endpoint}/upload/storage/v1/b/models/o?uploadType=media&name={name}"
        urlopen(Request(place, data, {"Content-Type": "application/octet-stream"})).close()

    def remove(self, path: str) -> None:
        name = quote(f"folder/{path}", safe="")
        urlopen(Request(f"{self.endpoint}/storage/v1/b/models/o/{name}", method="DELETE")).close()


class HuggingFace(NamedTuple):
    hub: Hub
    address: str = "hf://owner/models/folder"

    def put(self, path: str, data: bytes) -> None:
        self.hub.files[f"folder/{path}"] = data

    def remove(self, path: str) -> None:
        del self.hub.files[f"folder/{path}"]


@contextmanager
def google_storage(environment: pytest.MonkeyPatch) -> Iterator[GoogleStorage]:
    from gcp_storage_emulator.server import create_server  # an older environment lacks it
    from gcsfs.core import GCSFileSystem

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="models")
    server.start()
    server._api._httpd.handle_error = lambda *_: None  # of a reader that has left
    endpoint = f"http://127.0.0.1:{server._api._httpd.server_port}"
    environment.setenv("STORAGE_EMULATOR_HOST", endpoint)
    environment.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    environment.setitem(_registry, "gs", GCSFileSystem)  # the other speaks gRPC
    try:
        yield GoogleStorage(endpoint)
    finally:
        server.stop()


@contextmanager
def hugging_face(environment: pytest.MonkeyPatch) -> Iterator[HuggingFace]:
    from huggingface_hub import constants

    with hub() as there:
        template = f"{there.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        environment.setattr(constants, "ENDPOINT", there.address)
        environment.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield HuggingFace(there)


@pytest.fixture(params=[google_storage, hugging_face])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with request.param(monkeypatch) as there:
        yield there


def listed(store: Store) -> dict[str, remote.Object]:
    return {each.path: each for each in RemoteFolder(store.address).objects()}


def test_a_store_is_listed_and_read(store: Store) -> None:
    store.put("m/1/model.onnx", b"model")
    store.put("m/with space & more.txt", b"data")
    found = listed(store)
    assert {path: each.size for path, each in found.items()} == {
        "m/1/model.onnx": 5,
        "m/with space & more.txt": 4,
    }
    folder = RemoteFolder(store.address)
    assert b"".join(folder.pieces(found["m/1/model.onnx"])) == b"model"
    assert b"".join(folder.pieces(found["m/with space & more.txt"])) == b"data"


def test_an_object_is_read_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PIECE_BYTES", 4)
    store.put("m/model.onnx", b"0123456789")
    found = listed(store)["m/model.onnx"]
    assert list(RemoteFolder(store.address).pieces(found)) == [b"0123", b"4567", b"89"]


def test_objects_beside_the_folder_and_hidden_ones_are_not_listed(store: Store) -> None:
    store.put("m/model.onnx", b"model")
    store.put("m/.hidden", b"data")
    store.put(".copies/x/model.onnx", b"data")
    folder = RemoteFolder(store.address)
    assert [each.path for each in folder.objects()] == ["m/model.onnx"]
    elsewhere = RemoteFolder(store.address.removesuffix("er"))  # as the beginning of its name
    assert elsewhere.objects() == []


@pytest.mark.parametrize("data", [b"other", b"longer than before", b"x"])
def test_an_object_that_changed_since_the_listing_is_refused(store: Store, data: bytes) -> None:
    store.put("m/model.onnx", b"model")
    before = listed(store)["m/model.onnx"]
    store.put("m/model.onnx", data)
    with pytest.raises(ObjectChanged, match=r"m/model\.onnx changed while it was copied"):
        list(RemoteFolder(store.address).pieces(before))
    after = listed(store)["m/model.onnx"]
    assert (before.size, before.tag) != (after.size, after.tag)


def test_an_object_that_vanished_since_the_listing_is_told(store: Store) -> None:
    store.put("m/model.onnx", b"model")
    store.put("m/other", b"data")
    folder = RemoteFolder(store.address)
    before = listed(store)["m/model.onnx"]
    store.remove("m/model.onnx")
    with pytest.raises(FileNotFoundError, match=r"there is no m/model\.onnx"):
        list(folder.pieces(before))
    assert [each.path for each in folder.objects()] == ["m/other"]


def test_a_listing_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_OBJECTS", 3)
    for number in range(4):
        store.put(f"m/{number}.txt", b"data")
    with pytest.raises(OSError, match="more than 3 objects; name a smaller folder"):
        RemoteFolder(store.address).objects()


def test_google_storage_is_asked_for_no_more_objects_than_a_listing_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with google_storage(monkeypatch) as store:
        folder, asked = RemoteFolder(store.address), list[object]()
        call = folder._files._call

        async def noted(*path: object, **query: Any) -> Any:
            asked.append(query.get("maxResults"))
            return await call(*path, **query)

        monkeypatch.setattr(folder._files, "_call", noted)
        monkeypatch.setattr(remote, "MAX_OBJECTS", 3)
        assert folder.objects() == []
    assert asked == [4]


def test_a_bucket_that_is_not_there_is_told(store: Store) -> None:
    address = store.address.replace("models", "nosuchbucket")
    with pytest.raises(FileNotFoundError, match=f"there is no {address}$"):
        RemoteFolder(address).objects()


def test_a_mirror_follows_a_store(store: Store, tmp_path: Path) -> None:
    store.put("m/1/model.onnx", b"first")
    store.put("m/network.toml", b"# nothing")
    store.put("gone/model.onnx", b"gone")
    mirror = Mirror(RemoteFolder(store.address), tmp_path, 1000)
    mirror.sync()
    folder = mirror.root / "m" / "1"
    with mirror.used(folder):
        assert (folder / "model.onnx").read_bytes() == b"first"
    before = (mirror.root / "m").readlink()
    store.put("m/1/model.onnx", b"other")
    store.remove("gone/model.onnx")
    mirror.sync()  # sees the change, and takes it at the next look
    mirror.sync()
    assert (mirror.root / "m").readlink() != before
    with mirror.used(folder):
        assert (folder / "model.onnx").read_bytes() == b"other"
    assert not (mirror.root / "gone").exists()


def test_a_network_larger_than_all_copies_may_be_is_refused(store: Store, tmp_path: Path) -> None:
    store.put("m/model.onnx", bytes(1001))
    mirror = Mirror(RemoteFolder(store.address), tmp_path, 1000)
    mirror.sync()
    refused = pytest.raises(OSError, match="1,001 bytes of m do not fit into the 1,000")
    with refused, mirror.used(mirror.root / "m"):
        pass


@pytest.fixture
def face(monkeypatch: pytest.MonkeyPatch) -> Iterator[HuggingFace]:
    with hugging_face(monkeypatch) as there:
        yield there


@pytest.mark.parametrize("name", ["../evil", "m/../../evil", "m//model.onnx", "m/x\ny", "/etc/x"])
def test_a_name_of_a_hub_that_leads_elsewhere_is_left_out(face: HuggingFace, name: str) -> None:
    face.put(name, b"evil")
    face.put("m/model.onnx", b"model")
    assert list(listed(face)) == ["m/model.onnx"]


def test_a_hub_that_sends_more_than_was_asked_for_is_refused(face: HuggingFace) -> None:
    face.put("m/model.onnx", b"model")
    found = listed(face)["m/model.onnx"]
    face.hub.reads["folder/m/model.onnx"] = b"model and more"
    face.hub.ignores_ranges = True
    with pytest.raises(ObjectChanged):
        list(RemoteFolder(face.address).pieces(found))


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (401, PermissionError, "may not be read; give the server credentials that may"),
        (403, PermissionError, "may not be read; give the server credentials that may"),
        (429, StoreAway, "cannot be reached: status 429"),
        (500, StoreAway, "cannot be reached: status 500"),
    ],
)
def test_a_hub_that_refuses_is_told_by_its_status(
    face: HuggingFace, status: int, kind: type[OSError], says: str
) -> None:
    face.hub.status = status
    with pytest.raises(kind, match=says) as raised:
        RemoteFolder(face.address).objects()
    assert type(raised.value) is kind
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("address", ["hf://one", "hf://one/", "hf://datasets/one"])
def test_a_repository_without_an_owner_is_not_an_address(address: str) -> None:
    says = f"{address} is not an address of a folder in a store; give .* hf://owner/repository"
    with pytest.raises(OSError, match=says) as raised:
        RemoteFolder(address).objects()
    assert type(raised.value) is OSError  # which a start does not wait for
