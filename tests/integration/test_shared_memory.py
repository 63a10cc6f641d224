"""Tensors in shared memory that clients make: over the wire, as any gRPC client sends them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.runtime.network.values import Array
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import ErrorDetails
from tests.integration.harness import (
    CALL_SECONDS,
    Server,
    Stream,
    assert_settled,
    details_of,
    infer_request,
    is_running,
    outcome_of,
    until,
)
from tests.support.patience import DEADLINES
from tests.support.stateful import SUM_STATES, TALLY

REPOSITORY = Path(__file__).parents[2]
CONFIG = """
[plugins.APART]
device = "CPU"
[plugins.APART.config]
ISOLATION = "PROCESS"
"""
LARGE = (600, 1024)  # float32: 2.4 MB, which are copied on a thread
DOUBLE = Case(
    "double",
    parse("double (float[n,m] x) => (float[n,m] y) { y = Add(x, x) }"),
    {"x": np.ones(LARGE, np.float32)},
)


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("shared") / "headrace.toml"
    path.write_text(CONFIG)
    options = ("--config", str(path), "--devices", "CPU,APART", "--allow-client-shared-memory")
    with Server(*options) as running:
        for device in ("CPU", "APART"):
            running.load(DOUBLE, device, f"double_{device}")
        for case in (networks.endless(), networks.string_join(), networks.sequence()):
            running.load(case, "CPU")
        yield running
        assert_settled(running)
        assert running.stop() == 0
        assert "Traceback" not in running.log(), running.log()


@contextmanager
def segment(size: int) -> Iterator[SharedMemory]:
    """A segment as other Python programs make it."""
    made = SharedMemory(create=True, size=size)
    try:
        yield made
    finally:
        made.close()
        made.unlink()


@contextmanager
def region(server: Server, size: int) -> Iterator[tuple[str, SharedMemory]]:
    """Name and segment of a registered region."""
    name = secrets.token_hex(4)
    with segment(size) as made:
        register(server, name, made.name, size)
        yield name, made
        unregister(server, name)


def memory(made: SharedMemory) -> memoryview:
    assert made.buf is not None
    return made.buf


def put(made: SharedMemory, offset: int, array: Array) -> None:
    memory(made)[offset : offset + array.nbytes] = array.tobytes()


def got(made: SharedMemory, offset: int, array: Array) -> Array:
    """What lies there, as an array like that one."""
    data = bytes(memory(made)[offset : offset + array.nbytes])
    return np.frombuffer(data, array.dtype).reshape(array.shape)


def register(server: Server, name: str, key: str, size: int, offset: int = 0) -> None:
    request = pb.RegisterSharedMemoryRequest(name=name, key=key, offset=offset, bytes=size)
    server.stub.RegisterSharedMemory(request, timeout=CALL_SECONDS)


def unregister(server: Server, name: str = "") -> None:
    request = pb.UnregisterSharedMemoryRequest(name=name)
    server.stub.UnregisterSharedMemory(request, timeout=CALL_SECONDS)


def listed(server: Server) -> set[str]:
    reply = server.stub.ListSharedMemory(pb.ListSharedMemoryRequest(), timeout=CALL_SECONDS)
    return {each.name for each in reply.regions}


def in_region(
    network: str, shape: tuple[int, ...], name: str, output_bytes: int = 0, **fields: Any
) -> pb.InferRequest:
    """A request whose input x is the region's beginning, and whose output y goes behind it."""
    size = 4 * int(np.prod(shape))
    request = pb.InferRequest(network=network, **fields)
    tensor = request.inputs.add(name="x").tensor
    tensor.dtype = pb.FLOAT
    tensor.shape.extend(shape)
    tensor.shared_memory.CopyFrom(pb.SharedMemory(region=name, offset=0, bytes=size))
    if output_bytes:
        place = pb.SharedMemory(region=name, offset=size, bytes=output_bytes)
        request.output_regions["y"].CopyFrom(place)
    return request


def infer(server: Server, request: pb.InferRequest) -> pb.InferReply:
    reply: pb.InferReply = server.stub.Infer(request, timeout=CALL_SECONDS)
    return reply


def refusal(call: Any) -> ErrorDetails:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return details_of(caught.value)


# ---- what it is for ----


@pytest.mark.parametrize("device", ["CPU", "APART"])
@pytest.mark.parametrize("shape", [(2, 3), LARGE])
def test_inputs_are_read_from_a_region_and_outputs_are_written_to_it(
    sharing: Server, device: str, shape: tuple[int, ...]
) -> None:
    """APART computes in a process of its own, which has memory of its own with the server."""
    x = networks.random(*shape)
    with region(sharing, 2 * x.nbytes + 10) as (name, made):
        put(made, 0, x)
        reply = infer(sharing, in_region(f"double_{device}", shape, name, x.nbytes + 10))
        (y,) = reply.outputs
        assert y.name == "y"
        assert (y.tensor.dtype, tuple(y.tensor.shape)) == (pb.FLOAT, shape)
        place = pb.SharedMemory(region=name, offset=x.nbytes, bytes=x.nbytes)
        assert y.tensor.shared_memory == place
        assert not y.tensor.data
        assert not reply.attachments
        np.testing.assert_array_equal(got(made, x.nbytes, x), x + x)


def test_an_output_travels_in_the_message_unless_it_is_wanted_elsewhere(sharing: Server) -> None:
    x = networks.random(*LARGE)
    with region(sharing, x.nbytes) as (name, made):
        put(made, 0, x)
        reply = infer(sharing, in_region("double_CPU", LARGE, name))
        assert reply.outputs[0].tensor.attachment
        assert reply.attachments[0] == (x + x).tobytes()
        request = infer_request("double_CPU", {"x": x})
        request.output_regions["y"].CopyFrom(pb.SharedMemory(region=name, bytes=x.nbytes))
        infer(sharing, request)
        np.testing.assert_array_equal(got(made, 0, x), x + x)


def test_regions_of_one_segment_are_parts_of_it(sharing: Server) -> None:
    x = networks.random(2, 3)
    with segment(5000) as made:
        register(sharing, "part", made.name, 1000, 4000)
        put(made, 4000, x)
        infer(sharing, in_region("double_CPU", (2, 3), "part", 24))
        np.testing.assert_array_equal(got(made, 4024, x), x + x)
        reply = sharing.stub.ListSharedMemory(pb.ListSharedMemoryRequest(), timeout=CALL_SECONDS)
        info = pb.SharedMemoryInfo(name="part", key=made.name, offset=4000, bytes=1000)
        assert list(reply.regions) == [info]
        unregister(sharing, "part")


def test_a_stream_has_requests_with_and_without_regions(sharing: Server) -> None:
    x = networks.random(*LARGE)
    with region(sharing, 2 * x.nbytes) as (name, made):
        put(made, 0, x)
        stream = Stream(sharing.stub)
        stream.send(
            in_region("double_CPU", LARGE, name, x.nbytes, id="shared"),
            infer_request("double_CPU", {"x": x[:1]}, id="plain"),
            in_region("double_CPU", LARGE, name, x.nbytes - 1, id="small"),
            in_region("double_CPU", LARGE, "absent", x.nbytes, id="absent"),
        )
        stream.done()
        results = {result.id: result for result in stream.results}
        assert {each: outcome_of(result) for each, result in results.items()} == {
            "shared": "OK",
            "plain": "OK",
            "small": "INVALID_ARGUMENT",
            "absent": "NOT_FOUND",
        }
        assert details_of(results["small"].error).reason == "REGION_TOO_SMALL"
        assert results["shared"].reply.outputs[0].tensor.shared_memory.bytes == x.nbytes
        np.testing.assert_array_equal(got(made, x.nbytes, x), x + x)


def test_requests_of_a_session_keep_their_order_wherever_their_inputs_lie(sharing: Server) -> None:
    """Bytes of a region are read on a thread, while the next request is there already."""
    sharing.load(Case("tally", TALLY, {}), "CPU", config={"STATES": SUM_STATES})
    large, small = np.zeros(LARGE, np.float32), np.ones((1, 1), np.float32)
    large[0, 0] = 1000
    requests: list[pb.InferRequest] = []
    expected: list[int] = []
    with region(sharing, large.nbytes) as (name, made):
        put(made, 0, large)
        for number in range(12):
            session = pb.Session(id="s", start=not number, end=number == 11)
            fields: dict[str, Any] = {"id": str(number), "session": session}
            requests.append(
                in_region("tally", LARGE, name, **fields)
                if number % 3 == 0
                else infer_request("tally", {"x": small}, **fields)
            )
            expected.append((1000 if number % 3 == 0 else 1) + (expected[-1] if expected else 0))
        stream = Stream(sharing.stub)
        stream.send(*requests)
        stream.done()
        answers = {int(each.id): each.reply for each in stream.results}
    sums = [np.frombuffer(answers[k].outputs[0].tensor.data, np.float32)[0] for k in range(12)]
    assert sums == expected
    sharing.unload("tally")


# ---- what is refused ----


def test_shared_memory_is_off_unless_it_is_allowed(server: Server) -> None:
    with segment(100) as made:
        refused = refusal(lambda: register(server, "r", made.name, 100))
    assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "--allow-client-shared-memory" in refused.message
    request = in_region("absent", (2, 3), "r")
    assert "--allow-client-shared-memory" in refusal(lambda: infer(server, request)).message
    assert listed(server) == set()
    unregister(server)


def test_a_name_is_given_once_until_it_is_unregistered(sharing: Server) -> None:
    with region(sharing, 100) as (name, made):
        refused = refusal(lambda: register(sharing, name, made.name, 100))
        assert refused.code is grpc.StatusCode.ALREADY_EXISTS
        assert listed(sharing) == {name}
    assert listed(sharing) == set()
    refused = refusal(lambda: unregister(sharing, name))
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_REGION")


def test_all_regions_are_unregistered_at_once(sharing: Server) -> None:
    with segment(100) as made:
        for name in "abc":
            register(sharing, name, made.name, 10)
        unregister(sharing)
    assert listed(sharing) == set()


@pytest.mark.parametrize("key", ["/headrace-absent", "/../etc/passwd", "", "/sem.x", "/a/b"])
def test_no_other_file_is_registered(sharing: Server, key: str) -> None:
    refused = refusal(lambda: register(sharing, "r", key, 1))
    assert refused.code.name in ("NOT_FOUND", "INVALID_ARGUMENT")
    assert refused.field == "key"


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes files of other users")
def test_a_segment_of_another_user_is_not_registered(sharing: Server) -> None:
    """Not even by a server that may open it."""
    with segment(100) as made:
        os.chown(Path("/dev/shm") / made.name, 12345, 12345)
        refused = refusal(lambda: register(sharing, "r", made.name, 100))
    assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "another user" in refused.message


STRANGER = """
import os, sys
import grpc
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.integration.test_shared_memory import *
address, region = sys.argv[1:]
with segment(100) as made:
    os.chown(f"/dev/shm/{made.name}", 12345, 12345)
    os.setuid(12345)  # before the connection is made
    stub = rpc.InferenceEngineStub(grpc.insecure_channel(address))

    def code(call, request):
        try:
            call(request, timeout=60)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"

    def listed():
        return len(stub.ListSharedMemory(pb.ListSharedMemoryRequest()).regions)

    print(code(stub.Infer, in_region("double_CPU", (2, 3), region)))
    print(code(stub.UnregisterSharedMemory, pb.UnregisterSharedMemoryRequest(name=region)))
    print(code(stub.UnregisterSharedMemory, pb.UnregisterSharedMemoryRequest()), listed())
    own = pb.RegisterSharedMemoryRequest(name=region, key=made.name, bytes=100)
    print(code(stub.RegisterSharedMemory, own), listed())
    print(code(stub.Infer, in_region("double_CPU", (2, 3), region)))
    sys.stdout.flush()
    os._exit(0)  # this user may not remove the file: multiprocessing's own process does
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root takes another user's place")
def test_another_user_has_regions_of_its_own_and_no_others(sharing: Server) -> None:
    with region(sharing, 100) as (name, _):
        command = [sys.executable, "-c", STRANGER, sharing.address, name]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
        said = ended.stdout.splitlines()
        assert said == ["NOT_FOUND", "NOT_FOUND", "OK 0", "OK 1", "OK"], ended.stderr
        assert listed(sharing) == {name}


def broken(name: str) -> Iterator[tuple[str, pb.InferRequest, str]]:
    """What is wrong, the request, and the field that the error names."""
    place, wanted = "inputs['x'].shared_memory", "output_regions['y']"
    for what, offset, size in (
        ("end", 90, 24),
        ("offset", 2**64 - 24, 24),
        ("size", 0, 2**64 - 1),
    ):
        request = in_region("double_CPU", (2, 3), name)
        request.inputs[0].tensor.shared_memory.MergeFrom(pb.SharedMemory(offset=offset, bytes=size))
        yield what, request, place
        request = in_region("double_CPU", (2, 3), name, 24)
        request.output_regions["y"].MergeFrom(pb.SharedMemory(offset=offset, bytes=size))
        yield f"output {what}", request, wanted
    request = in_region("double_CPU", (2, 3), name)
    request.inputs[0].tensor.shared_memory.bytes = 23
    yield "bytes that do not fit the shape", request, "inputs['x'].data"
    request = in_region("double_CPU", (2, 3), name)
    request.inputs[0].tensor.data = bytes(24)
    yield "data as well", request, place
    request = in_region("double_CPU", (2, 3), name)
    request.inputs[0].tensor.attachment = 1
    request.attachments.append(bytes(24))
    yield "an attachment as well", request, place
    request = in_region("double_CPU", (2, 3), name)
    request.inputs[0].tensor.dtype = pb.STRING
    yield "strings", request, "inputs['x']"
    request = in_region("double_CPU", (2, 3), name)
    request.output_regions["q"].CopyFrom(pb.SharedMemory(region=name, bytes=24))
    yield "an unknown output", request, "output_regions['q']"


def test_a_place_that_is_none_is_named(sharing: Server) -> None:
    with region(sharing, 100) as (name, made):
        for what, request, field in broken(name):
            refused = refusal(lambda request=request: infer(sharing, request))
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT, what
            assert refused.field == field, what
        assert not any(memory(made)[:100])


def test_an_output_that_does_not_fit_says_how_many_bytes_it_needs(sharing: Server) -> None:
    with region(sharing, 100) as (name, made):
        refused = refusal(lambda: infer(sharing, in_region("double_CPU", (2, 3), name, 23)))
        assert refused.reason == "REGION_TOO_SMALL"
        assert refused.metadata["bytes"] == "24"
        assert not any(memory(made)[:100])


def test_what_is_no_tensor_of_numbers_travels_in_the_message(sharing: Server) -> None:
    with region(sharing, 100) as (name, _):
        join, sequence = networks.string_join(), networks.sequence()
        for case, output in ((join, "z"), (sequence, "z")):
            request = infer_request(case.name, case.inputs)
            request.output_regions[output].CopyFrom(pb.SharedMemory(region=name, bytes=100))
            refused = refusal(lambda request=request: infer(sharing, request))
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
            assert "shared memory" in refused.message
        request = infer_request(sequence.name, sequence.inputs)
        element = request.inputs[0].sequence.elements[0].tensor
        element.data = b""
        element.shared_memory.CopyFrom(pb.SharedMemory(region=name, bytes=8))
        refused = refusal(lambda: infer(sharing, request))
        assert refused.field == "inputs['x'][0].shared_memory"


# ---- while requests run ----


def test_an_unregister_waits_for_the_request_that_uses_the_region(sharing: Server) -> None:
    x = networks.endless().inputs["x"]
    with segment(100) as made, ExitStack() as ends:
        register(sharing, "busy", made.name, 100)
        request = infer_request("endless", {"x": x})
        request.output_regions["y"].CopyFrom(pb.SharedMemory(region="busy", bytes=100))
        running = sharing.stub.Infer.future(request, timeout=CALL_SECONDS)
        ends.callback(running.cancel)
        until(lambda: is_running(sharing, "CPU"))
        short = pb.UnregisterSharedMemoryRequest(name="busy")
        for seconds in DEADLINES:  # until the call gets there in its time
            ended = sharing.stub.UnregisterSharedMemory.future(short, timeout=seconds)
            assert ended.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if not listed(sharing):
                break
        assert listed(sharing) == set(), "nobody names it any more"
        register(sharing, "busy", made.name, 100)
        everything = pb.UnregisterSharedMemoryRequest()
        sharing.stub.UnregisterSharedMemory(everything, timeout=CALL_SECONDS)
        assert not running.done(), "it has the region that was there before"
        descriptors = Path(f"/proc/{sharing.process.pid}/fd")

        def still_open() -> bool:
            found = set()
            for each in descriptors.iterdir():
                with suppress(FileNotFoundError):  # closed by now
                    found.add(each.readlink().name)
            return made.name in found

        assert still_open()
        running.cancel()
        until(lambda: not still_open(), "the file was to be closed")


def test_requests_on_a_stream_that_use_a_region_are_cancelled_by_id(sharing: Server) -> None:
    with region(sharing, 100) as (name, made):
        put(made, 0, networks.random(2))
        stream = Stream(sharing.stub)
        request = infer_request("endless", {}, id="endless")
        tensor = request.inputs.add(name="x").tensor
        tensor.dtype = pb.FLOAT
        tensor.shape.append(2)
        tensor.shared_memory.CopyFrom(pb.SharedMemory(region=name, bytes=8))
        stream.send(request)
        stream.send(cancel=["endless"])
        stream.done()
        assert [outcome_of(result) for result in stream.results] == ["CANCELLED"]


def test_a_client_that_truncates_its_file_harms_nobody_but_itself(sharing: Server) -> None:
    """Every reply is an error, or made of bytes that the client has had in its file."""
    x = np.full(LARGE, 7, np.float32)
    stop = threading.Event()
    with region(sharing, 2 * x.nbytes) as (name, made):
        path = Path("/dev/shm") / made.name
        descriptor = os.open(path, os.O_RDWR)

        def shrink() -> None:
            length = 0
            while not stop.is_set():
                length = (length + 1_234_568) % (2 * x.nbytes)
                os.truncate(path, length)
                stop.wait(0.0005)  # so that the server gets to see it
                os.truncate(path, 2 * x.nbytes)
                os.pwrite(descriptor, x.tobytes(), 0)

        hostile = threading.Thread(target=shrink)
        hostile.start()
        outcomes = {"OK": 0, "INVALID_ARGUMENT": 0}
        try:
            for number in range(30_000):
                if number >= 300 and min(outcomes.values()) > 0:
                    break
                wanted = x.nbytes if number % 2 else 0
                network = "double_CPU" if number % 3 else "double_APART"
                request = in_region(network, LARGE, name, wanted)
                try:
                    reply = infer(sharing, request)
                except grpc.RpcError as error:
                    details = details_of(error)
                    outcomes[details.code.name] += 1
                    assert "has become shorter" in details.message
                else:
                    outcomes["OK"] += 1
                    if not wanted:
                        y = np.frombuffer(reply.attachments[0], np.float32)
                        assert set(np.unique(y)) <= {0.0, 14.0}
        finally:
            stop.set()
            hostile.join()
            os.close(descriptor)
        assert min(outcomes.values()) > 0, outcomes
    np.testing.assert_array_equal(sharing.infer("double_CPU", {"x": x})["y"], x + x)
