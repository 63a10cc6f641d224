"""The model repository of a running server: versions come, share requests, break and go, and no
request fails for it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from headrace.client import Client, aio, errors
from headrace.client.cli.app import make_app
from headrace.client.sync import Network
from headrace.testing.case import parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import BASIC, CALL_SECONDS, Server, until
from tests.support.manual import blocks, commands

X = np.zeros(2, np.float32)


def adds(number: int) -> bytes:
    """A model that adds a number: so its answers tell which version gave them."""
    text = "m (float[2] x) => (float[2] y) { y = Add(x, w) }"
    model: onnx.ModelProto = parse(text, {"w": np.array([number], np.float32)})
    return model.SerializeToString()


class Folder:
    """A model repository on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, version: int, data: bytes | None = None) -> None:
        folder = self.root / name / str(version)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(adds(version) if data is None else data)

    def rename_into_place(self, name: str, version: int, data: bytes) -> None:
        beside = self.root / ".beside"
        beside.mkdir()
        (beside / "model.onnx").write_bytes(data)
        place = self.root / name / str(version)
        if place.exists():
            (beside / "model.onnx").rename(place / "model.onnx")
            beside.rmdir()
        else:
            beside.rename(place)

    def describe(self, name: str, text: str) -> None:
        (self.root / "new").write_text(text)
        (self.root / "new").rename(self.root / name / "network.toml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def server(folder: Folder) -> Iterator[Server]:
    options = ("--model-repository", str(folder.root), "--repository-poll-seconds", "0.1")
    with Server(*BASIC, *options) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def answer(network: Network) -> int:
    """The number that the version adds."""
    return int(network.infer({"x": X})["y"][0])


def ready(client: Client, name: str) -> dict[str, str]:
    """Version to reason, of the versions that are ready."""
    return {
        row.version: row.reason
        for row in client.repository()
        if row.name == name and row.state == "READY"
    }


def until_ready(client: Client, name: str, *versions: int) -> None:
    wanted = {str(version) for version in versions}
    until(lambda: ready(client, name).keys() == wanted, f"{name} was to have {versions}")


class Caller:
    """Calls a network all the time, and notes the versions that answer."""

    def __init__(self, target: str, name: str) -> None:
        self._target, self._name = target, name
        self.answers: Counter[str] = Counter()
        self.wrong: list[object] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(CALL_SECONDS)

    def until_more(self, count: int) -> Counter[str]:
        """The versions of at least so many answers from now on."""
        before = self.answers.copy()
        wanted = before.total() + count
        until(lambda: self.wrong or self.answers.total() >= wanted, "more answers were to come")
        return self.answers - before

    def _run(self) -> None:
        with Client(self._target) as client:
            network = client.network(self._name)
            while not self._over.is_set():
                try:
                    outputs = network.infer({"x": X})
                except errors.Error as error:
                    self.wrong.append(error)
                    return
                if str(int(outputs["y"][0])) != outputs.version:
                    self.wrong.append(outputs)
                self.answers[outputs.version] += 1


def test_versions_come_share_requests_and_go_back_in_one_call_while_no_request_fails(
    server: Server, client: Client, folder: Folder
) -> None:
    folder.put("canary", 1)
    until_ready(client, "canary", 1)
    with Caller(server.address, "canary") as caller:
        folder.put("canary", 2)
        folder.describe("canary", "[traffic]\n2 = 10\n")
        until_ready(client, "canary", 1, 2)
        caller.until_more(5)
        shared = caller.until_more(100)
        assert 8 <= shared["2"] * 100 / shared.total() <= 12
        network = client.network("canary")
        network.set_traffic({"1": 100})
        caller.until_more(5)
        assert set(caller.until_more(50)) == {"1"}
        network.set_traffic({"2": 100})
        caller.until_more(5)
        assert set(caller.until_more(50)) == {"2"}
        network.set_traffic({})
        folder.describe("canary", "version_policy = {latest = 1}\n")
        until_ready(client, "canary", 2)
        folder.put("canary", 3, adds(3)[:20])
        until(lambda: "cut short" in str(client.repository()), "the broken one was to be noticed")
        assert ready(client, "canary").keys() == {"2"}
        folder.put("canary", 3)
        until_ready(client, "canary", 3)
        shutil.rmtree(folder.root / "canary" / "1")
        caller.until_more(20)
    assert caller.wrong == []
    assert set(caller.answers) == {"1", "2", "3"}


def test_clients_address_versions(server: Server, client: Client, folder: Folder) -> None:
    (folder.root / "many").mkdir()
    folder.describe("many", 'version_policy = "all"')
    for version in (1, 2, 10):
        folder.put("many", version)
    until_ready(client, "many", 1, 2, 10)
    assert answer(client.network("many")) == 10
    assert [answer(client.network("many", version=each)) for each in ("1", "2")] == [1, 2]
    assert client.network("many", version="2").version == "2"
    listed = [each for each in client.networks() if each.name == "many"]
    assert {each.version: answer(each) for each in listed} == {"1": 1, "2": 2, "10": 10}
    with pytest.raises(errors.NotFound, match="no version '3'; it has 1, 2, 10"):
        client.network("many", version="3")
    client.network("many", version="10").unload()
    assert answer(client.network("many")) == 2
    assert server.total("headrace_network_requests_total", network="many", version="1") == 2
    client.network("many").unload()
    with pytest.raises(errors.NotFound):
        client.network("many")
    client.load_network(repository="many")
    assert ready(client, "many").keys() == {"1", "2", "10"}


def test_the_asyncio_client_has_versions_too(server: Server, folder: Folder) -> None:
    folder.put("awaited", 7)

    async def scenario() -> None:
        async with aio.Client(server.address) as client:
            while "7" not in [
                row.version
                for row in await client.repository()
                if row.state == "READY" and row.name == "awaited"
            ]:
                await asyncio.sleep(0)
            network = await client.network("awaited", version="7")
            outputs = await network.infer({"x": X})
            assert (outputs["y"][0], outputs.version) == (7, "7")
            await network.set_traffic({"7": 100})
            assert [each.version for each in await client.networks() if each.name == "awaited"]

    asyncio.run(scenario())


def test_a_rename_replaces_a_model_and_a_removed_folder_unloads_it(
    server: Server, client: Client, folder: Folder
) -> None:
    folder.put("renamed", 1)
    until_ready(client, "renamed", 1)
    network = client.network("renamed")
    folder.rename_into_place("renamed", 1, adds(5))
    until(lambda: answer(network) == 5, "the renamed model was to serve")
    folder.rename_into_place("renamed", 2, adds(6))
    until(lambda: answer(network) == 6, "the renamed version was to serve")
    shutil.rmtree(folder.root / "renamed")

    def gone() -> bool:
        try:
            answer(network)
        except errors.NotFound:
            return True
        return False

    until(gone, "the removed network was to be unloaded")
    assert not [row for row in client.repository() if row.name == "renamed"]


def test_a_link_that_leads_out_is_refused_and_said(
    client: Client, folder: Folder, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").write_bytes(adds(1))
    (folder.root / "link").symlink_to(tmp_path)
    until(lambda: "leads out" in str(client.repository()), "the link was to be noticed")
    with pytest.raises(errors.FailedPrecondition, match="leads out"):
        client.load_network(repository="link", name="mine")
    (folder.root / "link").unlink()


def test_a_warm_up_that_fails_is_a_failed_load_with_its_reason(
    client: Client, folder: Folder
) -> None:
    folder.put("warm", 1)
    until_ready(client, "warm", 1)
    folder.describe("warm", "[warmup.shapes]\nx = [3]\n")
    until(lambda: "its warm-up failed" in str(client.repository()), "it was to be noticed")
    assert answer(client.network("warm")) == 1
    np.savez(folder.root / "warm" / "warmup.npz", x=X)
    folder.describe("warm", "warmup = 'warmup.npz'\n")
    until(lambda: ready(client, "warm") == {"1": ""}, "the right warm-up was to be taken")


def test_traffic_outlives_a_restart(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "repository")
    folder.put("m", 1)
    folder.put("m", 2)
    folder.describe("m", 'version_policy = "all"')
    options = ("--model-repository", str(folder.root), "--state-dir", str(tmp_path / "state"))
    with Server(*BASIC, *options) as server, Client(server.address) as client:
        client.network("m").set_traffic({"1": 100})
        assert server.stop() == 0
    with Server(*BASIC, *options) as server, Client(server.address) as client:
        assert answer(client.network("m")) == 1
        shares = [(row.version, row.share) for row in client.repository()]
        assert shares == [("1", 100), ("2", 0)]


def test_traffic_that_cannot_be_names_its_fault(server: Server) -> None:
    for network, shares, code in (
        ("nobody", {"1": 100}, grpc.StatusCode.NOT_FOUND),
        ("nobody", {"1": 101}, grpc.StatusCode.INVALID_ARGUMENT),
        ("nobody", {"one": 1}, grpc.StatusCode.INVALID_ARGUMENT),
        ("nobody", {}, grpc.StatusCode.NOT_FOUND),
    ):
        request = pb.SetTrafficRequest(network=network, shares=shares)
        with pytest.raises(grpc.RpcError) as caught:
            server.stub.SetTraffic(request, timeout=CALL_SECONDS)
        assert caught.value.code() is code


def test_the_examples_of_the_manual_run(
    server: Server,
    client: Client,
    folder: Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "m (uint8[1,224,224,3] x) => (float[1,224,224,3] y) { y = Cast<to = 1>(x) }"
    for version in (1, 2):
        folder.put("classifier", version, parse(text).SerializeToString())
    folder.describe("classifier", 'version_policy = "all"')
    until_ready(client, "classifier", 1, 2)
    monkeypatch.setenv("HEADRACE_SERVER", server.address)
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((1, 224, 224, 3), np.uint8))
    (code,) = blocks("docs/use/repository.md", "python")
    code = code.replace("localhost:9000", server.address)
    exec(compile(code, "docs/use/repository.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("2\n1\n")
    shown = commands("docs/use/repository.md")
    assert len(shown) == 5
    for words in shown:
        result = CliRunner().invoke(make_app(words), words)
        assert result.exit_code == 0, result.output
