"""A server with two front ends answers as one of one process does, also while its parts die."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.client import Client
from headrace.oip import open_inference_pb2 as oip
from headrace.oip import open_inference_pb2_grpc as opened
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from headrace.wire.codec import decode_values
from headrace.wire.parameters import decode_parameter
from tests.integration.bad_calls import TENSORS
from tests.integration.bad_input import ENDLESS, Bad, call, raw, refusal
from tests.integration.child_processes import children
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    Stream,
    assert_settled,
    infer_request,
    is_running,
    outcome_of,
    until,
)
from tests.support import tokens
from tests.support.gate import join
from tests.support.memory import memfd
from tests.support.side_socket import SideClient

CASE = networks.add()
LARGE = np.random.default_rng(5).random((600, 512), np.float32)
DOUBLE = Case(
    "double", parse("double (float[n,m] x) => (float[n,m] y) { y = Add(x, x) }"), {"x": LARGE}
)


@pytest.fixture(scope="module")
def many() -> Iterator[Server]:
    """A server with two front ends and a Unix socket. Each test leaves it with the networks add and
    endless."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(
            *(*BASIC, "--processes", "2", "--allow-client-shared-memory"),
            *("--unix-socket", f"{folder}/h.sock"),
        ) as server,
    ):
        config = pb.SetConfigRequest(
            target=pb.Target(device="TEMPLATE"), config={"NUM_STREAMS": "4"}
        )
        server.stub.SetConfig(config, timeout=CALL_SECONDS)
        server.load(CASE, "TEMPLATE", "sound")
        server.load(ENDLESS, "TEMPLATE")
        yield server
        assert server.stop() == 0, server.log()
        assert "internal error" not in server.log().lower(), server.log()
        assert "Traceback" not in server.log(), server.log()


def front_ends(server: Server) -> list[psutil.Process]:
    return children(server)


def connections(server: Server) -> dict[int, set[Any]]:
    """The clients' addresses of each front end's connections, by process."""
    port = int(server.address.rpartition(":")[2])
    found: dict[int, set[Any]] = {}
    for each in front_ends(server):
        try:
            seen = each.net_connections("tcp")
        except psutil.Error:  # it has just ended
            continue
        found[each.pid] = {one.raddr for one in seen if one.laddr.port == port and one.raddr}
    return found


@pytest.fixture
def connected(many: Server) -> Iterator[dict[int, Any]]:
    """A stub on a connection to each front end, by its process."""
    until(lambda: len(connections(many)) == 2)
    with ExitStack() as stack:
        stubs: dict[int, Any] = {}
        for _ in range(200):  # the system chooses the front end by the client's port
            before = connections(many)
            channel = stack.enter_context(closing(many.connect()))
            stub: Any = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
            stub.ListNetworks(pb.ListNetworksRequest(), timeout=CALL_SECONDS)
            new = [
                pid for pid, found in connections(many).items() if found - before.get(pid, set())
            ]
            stubs.update(dict.fromkeys(new, stub))
            if len(stubs) == 2:
                break
        yield stubs


def test_both_front_ends_serve_the_same_networks(many: Server, connected: dict[int, Any]) -> None:
    assert len(connected) == 2
    before = many.total("headrace_grpc_requests_total", method="Infer", code="OK")
    for stub in connected.values():
        for _ in range(3):
            reply = stub.Infer(infer_request("sound", CASE.inputs), timeout=CALL_SECONDS)
            outputs = decode_values(reply.outputs, reply.attachments, "outputs")
            np.testing.assert_array_equal(outputs["z"], CASE.expected()["z"])
    assert many.total("headrace_grpc_requests_total", method="Infer", code="OK") == before + 6
    assert_settled(many)


@pytest.mark.parametrize(
    "case", [networks.string_identity(), networks.sequence(), networks.image()], ids=str
)
def test_values_of_every_kind_come_back(many: Server, case: Any) -> None:
    many.load(case, "CPU", "kind")
    for name, value in many.infer("kind", case.inputs).items():
        expected = case.expected()[name]
        if isinstance(expected, list):
            assert len(expected) == len(value)  # type: ignore[arg-type]
        elif expected.dtype.kind == "f":
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
        else:
            assert value.tolist() == expected.tolist()  # type: ignore[union-attr]
    many.unload("kind")


def test_large_tensors_go_through_shared_memory_and_leave_none_behind(many: Server) -> None:
    many.load(DOUBLE, "TEMPLATE")
    for _ in range(5):
        outputs = many.infer(DOUBLE.name, DOUBLE.inputs)
        np.testing.assert_array_equal(outputs["y"], 2 * LARGE)
    many.unload(DOUBLE.name)


CALLS = (
    *TENSORS,
    Bad("garbage", raw("Infer", b"\xff" * 32), "INVALID_ARGUMENT", ""),
    Bad("no such method", raw("Nothing", b""), "UNIMPLEMENTED", ""),
    Bad("unload", call("UnloadNetwork", pb.UnloadNetworkRequest(name="no")), "NOT_FOUND", ""),
    Bad("config", call("GetConfig", pb.GetConfigRequest(name="x")), "INVALID_ARGUMENT", ""),
)


def test_errors_are_those_of_a_server_of_one_process(many: Server) -> None:
    with Server(*BASIC) as alone:
        alone.load(CASE, "TEMPLATE", "sound")
        alone.load(ENDLESS, "TEMPLATE")
        for bad in CALLS:
            one, two = refusal(bad, alone), refusal(bad, many)
            assert replace(one, request_id="") == replace(two, request_id=""), bad
            assert bool(one.request_id) == bool(two.request_id), bad


def test_a_stream_has_many_requests_in_flight_and_cancels_one(many: Server) -> None:
    stream = Stream(many.stub)
    stream.send(infer_request("endless", ENDLESS.inputs, id="held"))
    for first in range(0, 200, 20):
        numbers = range(first, first + 20)
        stream.send(*(infer_request("sound", CASE.inputs, id=f"{each}") for each in numbers))
    stream.send(infer_request("no", CASE.inputs, id="bad"))
    results = {(each := stream.next()).id: outcome_of(each) for _ in range(201)}
    assert results == {"bad": "NOT_FOUND", **{f"{each}": "OK" for each in range(200)}}
    stream.send(cancel=["held"])
    last = stream.next()
    assert (last.id, outcome_of(last)) == ("held", "CANCELLED")
    stream.done()
    assert list(stream.results) == []
    assert_settled(many)


def test_a_stream_of_more_bytes_than_are_read_ahead_arrives(many: Server) -> None:
    many.load(DOUBLE, "TEMPLATE")
    stream = Stream(many.stub)
    for each in range(12):
        stream.send(infer_request(DOUBLE.name, DOUBLE.inputs, id=f"{each}"))
    stream.done()
    results = list(stream.results)
    assert {each.id: outcome_of(each) for each in results} == {f"{i}": "OK" for i in range(12)}
    for result in results:
        outputs = decode_values(result.reply.outputs, result.reply.attachments, "outputs")
        np.testing.assert_array_equal(outputs["y"], 2 * LARGE)
    many.unload(DOUBLE.name)


def test_the_other_protocol_and_health_are_served_too(many: Server) -> None:
    stub: Any = opened.GRPCInferenceServiceStub(many.channel)  # type: ignore[no-untyped-call]
    asked = oip.ModelInferRequest(model_name="sound", id="a")
    for name, value in CASE.inputs.items():
        array = np.asarray(value)
        asked.inputs.add(name=name, datatype="FP32", shape=array.shape)
        asked.raw_input_contents.append(array.tobytes())
    for reply in (
        stub.ModelInfer(asked, timeout=CALL_SECONDS),
        *(each.infer_response for each in stub.ModelStreamInfer(iter([asked] * 3))),
    ):
        assert (reply.id, reply.model_version) == ("a", "1")
        found = np.frombuffer(reply.raw_output_contents[0], np.float32)
        np.testing.assert_array_equal(found.reshape(2, 3), CASE.expected()["z"])
    health = health_pb2_grpc.HealthStub(many.channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service="sound"), timeout=CALL_SECONDS)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_a_deadline_and_a_cancel_reach_the_device(many: Server) -> None:
    late = many.start("endless", ENDLESS.inputs, timeout=0.5)
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    left = many.start("endless", ENDLESS.inputs)
    until(partial(is_running, many, "TEMPLATE"))
    left.cancel()
    assert_settled(many)


def test_an_exported_network_comes_back_in_pieces(many: Server) -> None:
    blob = many.export("sound")
    assert many.import_blob(blob, "again").name == "again"
    np.testing.assert_array_equal(many.infer("again", CASE.inputs)["z"], CASE.expected()["z"])
    many.unload("again")


def test_networks_are_replaced_while_both_front_ends_infer(
    many: Server, connected: dict[int, Any]
) -> None:
    counted = partial(many.total, "headrace_network_requests_total", network="moving")
    before = counted()
    many.load(CASE, "TEMPLATE", "moving")
    stop = threading.Event()
    seen: Counter[str] = Counter()
    replied = threading.Semaphore(0)

    def infer(stub: Any) -> None:
        while not stop.is_set():
            call = stub.Infer.future(infer_request("moving", CASE.inputs), timeout=CALL_SECONDS)
            seen[call.code().name] += 1
            replied.release()

    callers = [
        threading.Thread(target=infer, args=(stub,)) for stub in connected.values() for _ in "12"
    ]
    for caller in callers:
        caller.start()
    model = pb.ModelSource(data=CASE.model.SerializeToString())
    for _ in range(3):
        request = pb.LoadNetworkRequest(name="moving", model=model, device="TEMPLATE", replace=True)
        many.stub.LoadNetwork(request, timeout=CALL_SECONDS)
        for _ in range(20):
            assert replied.acquire(timeout=CALL_SECONDS)
    stop.set()
    join(*callers)
    assert seen.keys() == {"OK"}, seen
    assert counted() - before == seen["OK"]
    assert_settled(many)
    many.unload("moving")


def test_a_front_end_that_is_killed_takes_only_its_own_callers_with_it(
    many: Server, connected: dict[int, Any]
) -> None:
    (doomed, his), (_, other) = connected.items()

    def run(count: int) -> bool:  # the other stubs may be on the front end that is killed
        target = pb.Target(device="TEMPLATE")
        metric = pb.GetMetricRequest(target=target, name="NUMBER_OF_EXEC_INFER_REQUESTS")
        reply = other.GetMetric(metric, timeout=CALL_SECONDS)
        return bool(decode_parameter(reply.value) == count)

    request = infer_request("endless", ENDLESS.inputs)
    lost = his.Infer.future(request, timeout=CALL_SECONDS)
    until(partial(run, 1))
    held = Stream(other)
    held.send(infer_request("endless", ENDLESS.inputs, id="held"))
    until(partial(run, 2))
    psutil.Process(doomed).kill()
    assert lost.code() is grpc.StatusCode.UNAVAILABLE
    until(partial(run, 1), "the engine was to cancel the lost request")
    held.send(infer_request("sound", CASE.inputs, id="next"))
    after = held.next()
    assert (after.id, outcome_of(after)) == ("next", "OK")
    until(
        lambda: len(found := connections(many)) == 2 and doomed not in found,
        "it was to start again",
    )
    held.send(cancel=["held"])
    last = held.next()
    assert (last.id, outcome_of(last)) == ("held", "CANCELLED")
    held.done()
    assert list(held.results) == []
    # The client connects again, to whichever front end.
    reply = his.Infer(
        infer_request("sound", CASE.inputs), timeout=CALL_SECONDS, wait_for_ready=True
    )
    assert reply.outputs
    assert_settled(many)


@contextmanager
def segment(size: int) -> Iterator[tuple[str, Any]]:
    """A segment with a name: its key, and its bytes."""
    made = SharedMemory(create=True, size=size)
    try:
        yield f"/{made.name.lstrip('/')}", made.buf
    finally:
        made.close()
        made.unlink()


def placed(region: str, offset: int) -> pb.SharedMemory:
    return pb.SharedMemory(region=region, offset=offset, bytes=LARGE.nbytes)


def doubled(region: str) -> pb.InferRequest:
    """A request of ``double`` with its input and output in a region."""
    request = pb.InferRequest(network=DOUBLE.name, id="r")
    tensor = pb.Tensor(dtype=pb.FLOAT, shape=LARGE.shape, shared_memory=placed(region, 0))
    request.inputs.add(name="x", tensor=tensor)
    request.output_regions["y"].CopyFrom(placed(region, LARGE.nbytes))
    return request


def test_memory_with_a_name_serves_connections_of_its_user_to_each_front_end(
    many: Server, connected: dict[int, Any]
) -> None:
    many.load(DOUBLE, "TEMPLATE")
    first, second = connected.values()
    with segment(2 * LARGE.nbytes) as (key, memory):
        register = pb.RegisterSharedMemoryRequest(name="mine", key=key, bytes=2 * LARGE.nbytes)
        first.RegisterSharedMemory(register, timeout=CALL_SECONDS)
        with pytest.raises(grpc.RpcError) as again:
            second.RegisterSharedMemory(register, timeout=CALL_SECONDS)
        assert again.value.code() is grpc.StatusCode.ALREADY_EXISTS
        memory[: LARGE.nbytes] = LARGE.tobytes()
        for stub in (first, second):
            memory[LARGE.nbytes :] = bytes(LARGE.nbytes)
            reply = stub.Infer(doubled("mine"), timeout=CALL_SECONDS)
            assert reply.outputs[0].tensor.shared_memory == placed("mine", LARGE.nbytes)
            assert bytes(memory[LARGE.nbytes :]) == (2 * LARGE).tobytes()
            stream = Stream(stub)
            stream.send(doubled("mine"))
            stream.done()
            assert [outcome_of(each) for each in stream.results] == ["OK"]
        gone = pb.UnregisterSharedMemoryRequest(name="mine")
        second.UnregisterSharedMemory(gone, timeout=CALL_SECONDS)
        with pytest.raises(grpc.RpcError) as unknown:
            first.Infer(doubled("mine"), timeout=CALL_SECONDS)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        del memory
    many.unload(DOUBLE.name)


def test_the_other_protocol_s_memory_serves_them_too(many: Server) -> None:
    many.load(DOUBLE, "TEMPLATE")
    size = LARGE.nbytes
    with (
        segment(2 * size) as (key, memory),
        closing(many.connect()) as one,
        closing(many.connect()) as other,
    ):
        stubs = [opened.GRPCInferenceServiceStub(each) for each in (one, other)]  # type: ignore[no-untyped-call]
        registration = oip.SystemSharedMemoryRegisterRequest(
            name="theirs", key=key, byte_size=2 * size
        )
        stubs[0].SystemSharedMemoryRegister(registration, timeout=CALL_SECONDS)
        request = oip.ModelInferRequest(model_name=DOUBLE.name)
        request.inputs.add(name="x", datatype="FP32", shape=LARGE.shape)
        request.outputs.add(name="y")
        for tensor, offset in ((request.inputs[0], 0), (request.outputs[0], size)):
            tensor.parameters["shared_memory_region"].string_param = "theirs"
            tensor.parameters["shared_memory_offset"].int64_param = offset
            tensor.parameters["shared_memory_byte_size"].int64_param = size
        memory[:size] = LARGE.tobytes()
        for stub in stubs:
            memory[size:] = bytes(size)
            stub.ModelInfer(request, timeout=CALL_SECONDS)
            assert bytes(memory[size:]) == (2 * LARGE).tobytes()
        unregister = oip.SystemSharedMemoryUnregisterRequest(name="theirs")
        stubs[1].SystemSharedMemoryUnregister(unregister, timeout=CALL_SECONDS)
        assert not stubs[0].SystemSharedMemoryStatus(oip.SystemSharedMemoryStatusRequest()).regions
        del memory
    many.unload(DOUBLE.name)


def test_the_engine_serves_the_unix_socket_and_its_memory_works_at_each_front_end(
    many: Server, connected: dict[int, Any], spied: list[bool]
) -> None:
    many.load(DOUBLE, "TEMPLATE")
    with Client(many.unix) as client:
        for _ in range(2):
            outputs = client.network(DOUBLE.name).infer(DOUBLE.inputs)
            np.testing.assert_array_equal(outputs["y"], 2 * LARGE)
    assert spied == [True, True]
    own = memfd(2 * LARGE.nbytes, data=LARGE.tobytes())
    with SideClient(many.unix.removeprefix("unix:")) as side:
        side.hello()
        name = side.hand_over(os.dup(own))
        for stub in connected.values():
            os.pwrite(own, bytes(LARGE.nbytes), LARGE.nbytes)
            stub.Infer(doubled(name), timeout=CALL_SECONDS)
            assert os.pread(own, LARGE.nbytes, LARGE.nbytes) == (2 * LARGE).tobytes()
    os.close(own)
    many.unload(DOUBLE.name)


def test_the_memory_of_each_process_is_told(many: Server) -> None:
    def of(process: str) -> float:
        return many.total("headrace_process_memory_bytes", process=process)

    def is_told(process: str) -> bool:
        return 10e6 < of(process) < 10e9

    for each in ("engine", "front-end-0", "front-end-1"):
        until(partial(is_told, each), f"{each} was to have some memory")
    assert of("engine") == pytest.approx(many.total("process_resident_memory_bytes"), rel=0.5)


def test_the_connections_of_all_front_ends_are_counted(
    many: Server, connected: dict[int, Any]
) -> None:
    assert len(connected) == 2

    def right() -> bool:
        total = sum(map(len, connections(many).values()))
        return many.total("headrace_connections", protocol="grpc") == total

    until(right, "the metric was to count both")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """Another one, that asks for tokens, and has only few places for one client."""
    file = tmp_path / "tokens.toml"
    entries = [tokens.entry(name, f"secret-{name}", "manage") for name in ("ann", "bob")]
    file.write_text("".join(entries))
    options = ("--processes", "2", "--tokens", str(file), "--max-in-flight-per-client", "3")
    with Server("--devices", "TEMPLATE", *options) as server:
        yield server, file


def bearing(name: str) -> dict[str, Any]:
    metadata = (("authorization", f"Bearer secret-{name}"),)
    return {"metadata": metadata, "timeout": CALL_SECONDS}


def test_tokens_quotas_and_the_stop_are_those_of_one_server(guarded: tuple[Server, Path]) -> None:
    server, file = guarded
    model = pb.ModelSource(data=ENDLESS.model.SerializeToString())
    load = pb.LoadNetworkRequest(name="endless", model=model, device="TEMPLATE")
    request = infer_request("endless", ENDLESS.inputs)
    with ExitStack() as stack:
        channels = [stack.enter_context(closing(server.connect())) for _ in range(8)]
        stubs: list[Any] = [rpc.InferenceEngineStub(each) for each in channels]  # type: ignore[no-untyped-call]
        stubs[0].LoadNetwork(load, **bearing("bob"))
        for stub in stubs:
            with pytest.raises(grpc.RpcError) as caught:
                stub.Infer(request, timeout=CALL_SECONDS)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        # Of eight requests on eight connections, three are in flight, whoever carries them.
        calls = [stub.Infer.future(request, **bearing("ann")) for stub in stubs]
        refused = threading.Semaphore(0)
        for each in calls:
            each.add_done_callback(lambda _: refused.release())
        for _ in range(5):
            assert refused.acquire(timeout=CALL_SECONDS)
        assert Counter(each.code().name for each in calls if each.done()) == {
            "RESOURCE_EXHAUSTED": 5
        }
        tokens.replace(file, tokens.entry("bob", "secret-bob", "manage"))
        codes = Counter(each.code().name for each in calls)
        assert codes == {"RESOURCE_EXHAUSTED": 5, "UNAUTHENTICATED": 3}
        seen = stop_under_load(server, stubs[:4], request)
    assert seen.keys() <= {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}, seen
    assert seen["UNAVAILABLE"]
    assert server.process.wait(CALL_SECONDS) == 0, server.log()
    assert "Traceback" not in server.log(), server.log()


def stop_under_load(server: Server, stubs: list[Any], request: pb.InferRequest) -> Counter[str]:
    """The statuses of callers who go on calling until the server is gone."""
    gone = threading.Event()
    seen: Counter[str] = Counter()
    called = threading.Semaphore(0)

    def again(stub: Any) -> None:
        while not gone.is_set():
            call = stub.Infer.future(request, **{**bearing("bob"), "timeout": 0.2})
            code = call.code().name
            seen[code if code != "DEADLINE_EXCEEDED" else "RESOURCE_EXHAUSTED"] += 1
            called.release()

    callers = [threading.Thread(target=again, args=(stub,)) for stub in stubs]
    for caller in callers:
        caller.start()
    for _ in range(2 * len(stubs)):
        assert called.acquire(timeout=CALL_SECONDS)
    server.terminate()
    server.process.wait(CALL_SECONDS)
    gone.set()
    join(*callers)
    return seen


def test_front_ends_end_with_an_engine_that_is_killed() -> None:
    with Server("--devices", "TEMPLATE", "--processes", "2") as server:
        started = front_ends(server)
        assert len(started) == 2
        server.kill()
        _, left = psutil.wait_procs(started, timeout=CALL_SECONDS)
        assert not left
