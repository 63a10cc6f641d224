"""Clients on the server's machine: over a Unix socket, with memory handed over by descriptor."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import mmap
import os
import queue
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.client import Client, errors
from headrace.client.aio import Client as AioClient
from headrace.client.cli.app import make_app
from headrace.client.outputs import Outputs
from headrace.client.shared_memory import handover, pool
from headrace.server.settings.settings import options
from headrace.testing import networks
from headrace.testing.case import parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import CALL_SECONDS, Server, outcome_of, until
from tests.support.child import Child
from tests.support.manual import commands
from tests.support.memory import memfd
from tests.support.patience import DEADLINES
from tests.support.side_socket import SideClient
from tests.support.tokens import entry

SHAPE = (40, 1024)  # 160 KiB of float32
SIZE = 40 * 4096
DOUBLE = parse("double (float[n,m] x) => (float[n,m] y) { y = Add(x, x) }")
IN_PLACE = parse("in_place (float[40,1024] x) => (float[40,1024] y) { y = Add(x, x) }")
PICKED = parse("""picked (float[40,1024] x, int64[40960] at) => (float[40960] y) {
    flat = Constant<value = int64[1] {-1}>()
    row = Reshape(x, flat)
    y = Gather(row, at)
}""")
ENDLESS = parse("""endless (float[40,1024] x) => (float[40,1024] y) {
    yes = Constant<value = bool {1}>()
    none = Constant<value = int64 {9223372036854775807}>()
    y = Loop(none, yes, x) <body = body
        (int64 i, bool go, float[40,1024] v) => (bool more, float[40,1024] next) {
            more = Identity(go)
            next = Neg(v)
        }
    >
}""")
TOKEN, OTHER, READER = "a" * 20, "b" * 20, "c" * 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("l")
    tokens, path = folder / "tokens.toml", folder / "h.sock"
    tokens.write_text(
        entry("mine", TOKEN, "manage") + entry("other", OTHER, "infer") + entry("r", READER, "read")
    )
    chosen = ("--devices", "CPU", "--tokens", str(tokens), "--open-metrics")
    unix = ("--unix-socket", str(path), "--unix-socket-mode", "0640")
    with Server(*chosen, *unix, "--allow-client-shared-memory") as running:
        with Client(running.unix, token=TOKEN) as client:
            for model in (DOUBLE, IN_PLACE, PICKED, ENDLESS):
                name = model.graph.name
                client.load_network(model.SerializeToString(), device="CPU", name=name)
        yield running
        until(lambda: not memory_of(running), "the server closed what clients have left")
        assert running.stop() == 0
        assert "internal error" not in running.log().lower(), running.log()
        assert {each.name for each in folder.iterdir()} == {"tokens.toml"}


@pytest.fixture
def path(server: Server) -> Path:
    return Path(server.unix.removeprefix("unix:"))


@pytest.fixture(autouse=True)
def patient_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_SMALLEST_BYTES", 64 << 10)
    monkeypatch.setattr(handover, "SECONDS", CALL_SECONDS)


def memory_of(server: Server) -> list[str]:
    """The memory of clients that the server has open."""
    found = []
    for each in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(each.readlink()))
    return [link for link in found if link.startswith(("/memfd:client", "/memfd:headrace"))]


def calls(server: Server, token: str) -> Callable[[pb.InferRequest], pb.InferReply]:
    """Infer over TCP, as any program calls it."""
    call = server.channel.unary_unary("/headrace.v1.InferenceEngine/Infer")

    def infer(request: pb.InferRequest) -> pb.InferReply:
        metadata = [("authorization", f"Bearer {token}")]
        data = call(request.SerializeToString(), metadata=metadata, timeout=CALL_SECONDS)
        return pb.InferReply.FromString(data)

    return infer


def in_memory(name: str, offset: int = 0, room: int = SIZE, to: int | None = None) -> Any:
    """A request of ``double`` with its input in handed memory, and its output too, if it says
    where."""
    request = pb.InferRequest(network="double")
    tensor = request.inputs.add(name="x").tensor
    tensor.dtype = pb.FLOAT
    tensor.shape.extend(SHAPE)
    tensor.shared_memory.CopyFrom(pb.SharedMemory(region=name, offset=offset, bytes=room))
    if to is not None:
        place = pb.SharedMemory(region=name, offset=to, bytes=SIZE)
        request.output_regions["y"].CopyFrom(place)
    return request


def reason(call: Callable[[], object]) -> str:
    """The reason of a call's failure, in the trailing metadata of its status."""
    with pytest.raises(grpc.RpcError) as failed:
        call()
    return str(failed.value.code().name)


@pytest.mark.parametrize("form", ["unix:{}", "unix://{}"])
def test_the_client_hands_its_memory_over_by_itself(
    server: Server, path: Path, spied: list[bool], form: str
) -> None:
    x = networks.random(*SHAPE)
    with Client(form.format(path), token=TOKEN) as client:
        network = client.network("double")
        kept = [network.infer({"x": x})["y"] for _ in range(3)]
        network.infer({"x": -x})  # into the same memory
        request = network.start_async({"x": x})
        kept += [request.result()["y"]]
        for _, result in network.infer_many([{"x": x}] * 4, in_flight=1):
            assert isinstance(result, Outputs)
            kept.append(result["y"])
        for y in kept:
            np.testing.assert_array_equal(y, x + x)
        assert client.network("double").infer({"x": x[:2, :2]})["y"].shape == (2, 2)
    assert spied == [*[True] * 9, False]


def test_the_asyncio_client_does_so_too(server: Server, spied: list[bool]) -> None:
    x = networks.random(*SHAPE)

    async def run() -> None:
        async with AioClient(server.unix, token=TOKEN) as client:
            network = await client.network("double")
            for _ in range(2):
                np.testing.assert_array_equal((await network.infer({"x": x}))["y"], x + x)
            many = network.infer_many([{"x": x}] * 3, in_flight=1)
            async for _, result in many:
                assert isinstance(result, Outputs)
                np.testing.assert_array_equal(result["y"], x + x)

    asyncio.run(run())
    assert spied == [True] * 5


def test_a_client_may_send_messages_instead(server: Server, spied: list[bool]) -> None:
    x = networks.random(*SHAPE)
    with Client(server.unix, token=TOKEN, shared_memory=False) as client:
        np.testing.assert_array_equal(client.network("double").infer({"x": x})["y"], x + x)
    assert spied == [False]


def test_without_a_side_socket_tensors_travel_in_messages(
    server: Server, path: Path, spied: list[bool]
) -> None:
    x = networks.random(*SHAPE)
    link = path.with_name("link")  # beside it, there is nothing
    link.symlink_to(path.name)
    try:
        with Client(f"unix:{link}", token=TOKEN) as client:
            np.testing.assert_array_equal(client.network("double").infer({"x": x})["y"], x + x)
    finally:
        link.unlink()
    assert spied == [False]


def test_a_request_is_sent_again_in_a_message_if_its_memory_is_gone(
    server: Server, spied: list[bool]
) -> None:
    x = networks.random(*SHAPE)
    with Client(server.unix, token=TOKEN) as client:
        network = client.network("double")
        for _ in range(2):  # now the client knows how large the output is
            network.infer({"x": x})
        assert client.pool is not None
        assert client.pool._handover is not None
        client.pool._handover._drop()  # as if the server had been started again
        server_forgets = calls(server, TOKEN)
        names = [each.name for each in client.pool._all]
        until(lambda: reason(lambda: server_forgets(in_memory(names[0]))) == "NOT_FOUND")
        np.testing.assert_array_equal(network.infer({"x": x})["y"], x + x)
        np.testing.assert_array_equal(network.infer({"x": x})["y"], x + x)
    assert spied == [True, True, False, True]


def test_a_late_request_s_memory_is_not_used_again(server: Server, spied: list[bool]) -> None:
    """The server may still write to it, until the device lets go of the request."""
    x = networks.random(*SHAPE)
    with Client(server.unix, token=TOKEN) as client:
        for _ in range(2):
            client.network("double").infer({"x": x})
        assert client.pool is not None
        before = {each.name for each in client.pool._all}
        for seconds in DEADLINES:  # until the request is on its way in its time
            with pytest.raises(errors.DeadlineExceeded):
                client.network("endless").infer({"x": x}, timeout=seconds)
            if not before & {each.name for each in client.pool._all}:
                break
        for _ in range(2):
            np.testing.assert_array_equal(client.network("double").infer({"x": x})["y"], x + x)
        after = {each.name for each in client.pool._all}
    assert not before & after
    assert spied == [True] * 4


def test_any_program_may_name_memory_that_it_has_handed_over(server: Server, path: Path) -> None:
    x = networks.random(*SHAPE)
    own = memfd(2 * SIZE, data=x.tobytes())
    with SideClient(path) as client:
        assert client.hello(TOKEN) == {}
        name = client.hand_over(os.dup(own))
        reply = calls(server, TOKEN)(in_memory(name, to=SIZE))
        assert reply.outputs[0].tensor.shared_memory.region == name
        y = np.frombuffer(os.pread(own, SIZE, SIZE), np.float32).reshape(SHAPE)
        np.testing.assert_array_equal(y, x + x)
    os.close(own)


def test_another_identity_cannot_use_the_memory(server: Server, path: Path) -> None:
    with SideClient(path) as client:
        client.hello(TOKEN)
        name = client.hand_over(memfd(SIZE))
        assert reason(lambda: calls(server, OTHER)(in_memory(name))) == "NOT_FOUND"
        assert calls(server, TOKEN)(in_memory(name)).outputs


@pytest.mark.parametrize(
    ("offset", "room"), [(4, SIZE), (SIZE, SIZE), (1 << 62, SIZE), (0, SIZE - 4)]
)
def test_places_outside_of_the_memory_are_refused(
    server: Server, path: Path, offset: int, room: int
) -> None:
    with SideClient(path) as client:
        client.hello(TOKEN)
        name = client.hand_over(memfd(SIZE))
        infer = calls(server, TOKEN)
        assert reason(lambda: infer(in_memory(name, offset, room))) == "INVALID_ARGUMENT"
        assert reason(lambda: infer(in_memory(name, to=offset or 4))) == "INVALID_ARGUMENT"


def over_a_stream(server: Server, token: str) -> Callable[[pb.InferRequest], str]:
    """Sends requests over one InferStream, one after the other. Returns how each ended."""
    call = server.channel.stream_stream("/headrace.v1.InferenceEngine/InferStream")
    outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    metadata = [("authorization", f"Bearer {token}")]
    replies = call(iter(outgoing.get, b""), metadata=metadata, timeout=CALL_SECONDS)
    numbers = itertools.count()

    def ask(request: pb.InferRequest) -> str:
        request.id = f"r{next(numbers)}"
        outgoing.put(pb.InferStreamRequest(requests=[request]).SerializeToString())
        (result,) = pb.InferStreamReply.FromString(next(replies)).results
        assert result.id == request.id
        return outcome_of(result)

    return ask


def over_calls(server: Server, token: str) -> Callable[[pb.InferRequest], str]:
    """The same, each in a call of its own."""
    infer = calls(server, token)

    def ask(request: pb.InferRequest) -> str:
        try:
            infer(request)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    return ask


def assert_doubled(
    memory: int, name: str, ask: Callable[[pb.InferRequest], str], network: str, *, to: int
) -> None:
    """A request in a client's memory, whose output goes to a place there, is computed."""
    x = networks.random(*SHAPE)
    os.pwrite(memory, x.tobytes(), 0)
    request = in_memory(name, to=to)
    request.network = network
    assert ask(request) == "OK"
    y = np.frombuffer(os.pread(memory, SIZE, to), np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(y, x + x)


@pytest.mark.parametrize("network", ["double", "in_place"])
@pytest.mark.parametrize("way", [over_calls, over_a_stream])
def test_the_same_request_again_is_computed_with_what_the_memory_holds_now(
    server: Server, path: Path, way: Callable[..., Callable[[pb.InferRequest], str]], network: str
) -> None:
    own = memfd(2 * SIZE)
    with SideClient(path) as client:
        client.hello(TOKEN)
        name, ask = client.hand_over(os.dup(own)), way(server, TOKEN)
        for _ in range(5):
            assert_doubled(own, name, ask, network, to=SIZE)
    os.close(own)


@pytest.mark.parametrize("way", [over_calls, over_a_stream])
def test_an_output_is_copied_to_a_place_where_the_network_cannot_compute_it(
    server: Server, path: Path, way: Callable[..., Callable[[pb.InferRequest], str]]
) -> None:
    own, unaligned = memfd(2 * SIZE + 4), SIZE + 4
    with SideClient(path) as client:
        client.hello(TOKEN)
        name, ask = client.hand_over(os.dup(own)), way(server, TOKEN)
        for _ in range(3):
            assert_doubled(own, name, ask, "in_place", to=unaligned)
    os.close(own)


def test_an_output_may_take_the_place_of_its_input(server: Server, path: Path) -> None:
    x = networks.random(*SHAPE)
    own = memfd(SIZE)
    with SideClient(path) as client:
        client.hello(TOKEN)
        name, ask = client.hand_over(os.dup(own)), over_calls(server, TOKEN)
        request = in_memory(name, to=0)
        request.network = "in_place"
        for _ in range(3):
            os.pwrite(own, x.tobytes(), 0)
            assert ask(request) == "OK"
            y = np.frombuffer(os.pread(own, SIZE, 0), np.float32).reshape(SHAPE)
            np.testing.assert_array_equal(y, x + x)
    os.close(own)


def test_indices_that_change_during_a_request_reach_no_foreign_memory(
    server: Server, path: Path
) -> None:
    """A backend checks an index and reads it again. In between, another thread of the client writes
    one that points far away."""
    ones, far = np.zeros(40960, np.int64), np.full(40960, 1 << 40, np.int64)
    ended = threading.Event()
    own = memfd(4 * SIZE, data=np.ones(SHAPE, np.float32).tobytes())
    request = in_memory("")
    at = request.inputs.add(name="at").tensor
    at.dtype = pb.INT64
    at.shape.append(40960)

    def change() -> None:
        with mmap.mmap(own, 4 * SIZE) as mapped:
            indices = np.frombuffer(mapped, np.int64)[SIZE // 8 :][: len(ones)]
            while not ended.is_set():
                indices[:] = far
                indices[:] = ones
            del indices

    with SideClient(path) as client:
        client.hello(TOKEN)
        name, ask = client.hand_over(os.dup(own)), over_calls(server, TOKEN)
        request.network = "picked"
        request.inputs[0].tensor.shared_memory.region = name
        at.shared_memory.CopyFrom(pb.SharedMemory(region=name, offset=SIZE, bytes=2 * SIZE))
        changing = threading.Thread(target=change)
        changing.start()
        try:
            assert {ask(request) for _ in range(50)} <= {"OK", "INVALID_ARGUMENT"}
        finally:
            ended.set()
            changing.join()
        assert ask(request) == "OK"
    os.close(own)


@pytest.mark.parametrize("way", [over_calls, over_a_stream])
def test_the_same_request_again_is_refused_for_the_same_reason(
    server: Server, path: Path, way: Callable[..., Callable[[pb.InferRequest], str]]
) -> None:
    def again(request: pb.InferRequest) -> set[str]:
        return {ask(request) for _ in range(4)}

    read_only = memfd(2 * SIZE, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    with SideClient(path) as client:
        client.hello(TOKEN)
        ask, name = way(server, TOKEN), client.hand_over(memfd(2 * SIZE))
        assert again(in_memory(name, to=SIZE)) == {"OK"}
        outside, small, other, unknown = (in_memory(name, to=SIZE) for _ in range(4))
        outside.output_regions["y"].offset = SIZE + 4
        small.output_regions["y"].bytes = 8
        other.output_regions["z"].CopyFrom(small.output_regions["y"])
        unknown.network = "none"
        for each in (outside, small, other):
            assert again(each) == {"INVALID_ARGUMENT"}
        assert again(unknown) == {"NOT_FOUND"}
        sealed = client.hand_over(read_only)
        assert again(in_memory(sealed)) == {"OK"}
        assert again(in_memory(sealed, to=SIZE)) == {"FAILED_PRECONDITION"}
        late = in_memory(name)
        late.network, late.timeout_seconds = "endless", 0.05
        assert again(late) == {"DEADLINE_EXCEEDED"}
        assert again(in_memory(name, to=SIZE)) == {"OK"}
        stranger = way(server, OTHER)
        assert {stranger(in_memory(name, to=SIZE)) for _ in range(3)} == {"NOT_FOUND"}
    until(lambda: ask(in_memory(name, to=SIZE)) == "NOT_FOUND", "the server forgot the memory")


@pytest.mark.parametrize("token", ["", "wrong", READER])
def test_only_callers_that_may_infer_hand_memory_over(
    server: Server, path: Path, token: str
) -> None:
    with SideClient(path) as client:
        answer = client.hello(token)
        assert answer is not None
        expected = "PERMISSION_DENIED" if token == READER else "UNAUTHENTICATED"
        assert answer["error"]["code"] == expected
        assert client.receive() is None


def test_the_memory_of_a_killed_client_goes(server: Server, path: Path) -> None:
    program = f"""
import sys, time
from tests.support.manual import commands
from tests.support.memory import memfd
from tests.support.side_socket import SideClient
client = SideClient({str(path)!r})
client.hello({TOKEN!r})
print(client.hand_over(memfd({SIZE})), flush=True)
time.sleep(600)
"""
    with Child(program) as client:
        name = client.line()
        infer = calls(server, TOKEN)
        assert infer(in_memory(name)).outputs
    until(lambda: _is_forgotten(infer, name), "the server forgot the memory")


def _is_forgotten(infer: Callable[[pb.InferRequest], object], name: str) -> bool:
    try:
        infer(in_memory(name))
    except grpc.RpcError as error:
        return bool(error.code() is grpc.StatusCode.NOT_FOUND)
    return False


def test_one_call_s_credential_does_not_open_the_unix_socket(server: Server) -> None:
    with Client(server.unix) as client, pytest.raises(errors.Unauthenticated):
        client.networks()


@pytest.mark.native_front_end("gRPC does not count its connections")
def test_the_socket_has_its_permissions_and_is_shown(server: Server, path: Path) -> None:
    for each in (path, path.with_name("h.sock.memory")):
        assert stat.S_IMODE(each.stat().st_mode) == 0o640
    with Client(server.unix, token=TOKEN) as client:
        assert client.status()["server"]["unix"] == server.unix
        until(lambda: server.total("headrace_connections", protocol="grpc") >= 1)


def test_a_server_may_have_a_unix_socket_alone_and_replaces_a_killed_one_s(
    short_folder: Path,
) -> None:
    chosen = ("--devices", "TEMPLATE", "--unix-socket", f"{short_folder}/h.sock")
    only = (*chosen, "--unix-socket-only")
    with Server(*only) as first:
        assert first.address == f"unix:{short_folder}/h.sock"
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(CALL_SECONDS)
        assert (short_folder / "h.sock").exists()
        with Server(*only) as second:
            with Client(second.address) as client:
                assert [each.name for each in client.devices()] == ["TEMPLATE"]
            assert second.stop() == 0
    assert list(short_folder.iterdir()) == []


@pytest.mark.parametrize("page", ["docs/run/operations.md", "docs/use/shared-memory.md"])
def test_the_commands_of_the_manual_work(
    server: Server, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", TOKEN)
    serve, *others = commands(page)
    assert serve[0] == "serve"
    path = serve[serve.index("--unix-socket") + 1]
    known = {each.flag for each in options()}
    assert {word for word in serve if word.startswith("--")} <= known
    for words in others:
        words = [word.replace(f"unix:{path}", server.unix) for word in words]
        ended = CliRunner().invoke(make_app(words), words, catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        assert "CPU" in ended.output
