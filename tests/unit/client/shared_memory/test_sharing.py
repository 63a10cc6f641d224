"""Which requests go through shared memory, and what is put where."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from headrace.client import errors
from headrace.client.info import Port, Ports
from headrace.client.plans.plan import CallMethod, Plan
from headrace.client.shared_memory.loan import Loan
from headrace.client.shared_memory.pool import MAX_SEGMENTS, RegionPool
from headrace.client.shared_memory.sharing import LEAST_BYTES, Sharing
from headrace.client.shared_memory.sizes import MAX_KNOWN, OutputSizes
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import codec
from headrace.wire.errors import ErrorDetails
from headrace.wire.message import parse_infer_request, serialize

X = np.arange(100_000, dtype=np.float32)
FIXED = Ports((Port("y", "float32", (100_000,)), Port("small", "int64", (3,))))
DYNAMIC = Ports((Port("y", "float32", ("n",)), Port("text", "string", (100_000,))))
EVEN_LESS = Ports(
    (
        Port("a", "float32", None),
        Port("b", "float32", (9_999,), "sequence"),
        Port("c", "unknown", (9_999,)),
    )
)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[RegionPool]:
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))
    except OSError as error:
        pytest.skip(str(error))
    made = RegionPool(tmp_path)
    yield made
    made.close()


def encoded(**inputs: object) -> tuple[pb.InferRequest, list[codec.Buffer]]:
    request = pb.InferRequest(network="net")
    attachments: list[codec.Buffer] = []
    codec.encode_values(inputs, request.inputs, attachments, "inputs")  # type: ignore[arg-type]
    return request, attachments


def never(steps: Plan[None]) -> None:
    """Has the background that no segment comes from."""
    steps.close()


def grown(sharing: Sharing, size: int) -> None:
    """Runs the plan as if the server said yes."""
    steps = sharing.grow(size)
    call = next(steps)
    assert isinstance(call, CallMethod)
    assert call.method == "RegisterSharedMemory"
    with pytest.raises(StopIteration):
        steps.send(pb.RegisterSharedMemoryReply())


def lent(sharing: Sharing, **inputs: object) -> Loan:
    request, attachments = encoded(**inputs)
    loan = sharing.lend(request, attachments)
    assert loan is not None
    return loan


def refused(code: str, reason: str) -> errors.Error:
    status = grpc.StatusCode[code]
    return errors.from_details(ErrorDetails(status, "no", reason=reason))


def test_inputs_and_fixed_outputs_lie_behind_each_other(pool: RegionPool) -> None:
    sharing = Sharing(pool, FIXED, never)
    grown(sharing, 4 << 20)
    request = lent(sharing, x=X, flag=np.array([True]), z=X[:5000]).request
    x, flag, z = (each.tensor for each in request.inputs)
    assert (x.shared_memory.offset, x.shared_memory.bytes) == (0, X.nbytes)
    assert flag.data == b"\x01"
    assert z.shared_memory.offset >= X.nbytes
    assert list(request.output_regions) == ["y"], "the other one is small"
    y = request.output_regions["y"]
    assert y.offset >= z.shared_memory.offset + z.shared_memory.bytes
    assert y.bytes == X.nbytes
    assert not x.attachment
    assert not z.attachment
    assert not any(place.offset % 64 for place in (x.shared_memory, z.shared_memory, y))


def test_small_requests_stay_as_they_are(pool: RegionPool) -> None:
    sharing = Sharing(pool, DYNAMIC, never)
    grown(sharing, 4 << 20)
    request, attachments = encoded(x=np.zeros(LEAST_BYTES // 4 - 1, np.float32))
    before = request.SerializeToString()
    assert sharing.lend(request, attachments) is None
    assert sharing._lacks(request, attachments) == 0
    assert request.SerializeToString() == before


def test_sequences_stay_in_messages(pool: RegionPool) -> None:
    sharing = Sharing(pool, FIXED, never)
    grown(sharing, 4 << 20)
    assert sharing.lend(*encoded(x=[X, X], y=X)) is None


def test_a_request_without_a_segment_has_one_made_in_the_background(pool: RegionPool) -> None:
    begun: list[Plan[None]] = []
    sharing = Sharing(pool, FIXED, begun.append)
    request, attachments = encoded(x=X)
    for _ in range(3):
        assert sharing.lend(request, attachments) is None
    (steps,) = begun
    register = next(steps)
    assert isinstance(register, CallMethod)
    assert register.request.bytes >= 2 * X.nbytes
    with pytest.raises(StopIteration):
        steps.send(pb.RegisterSharedMemoryReply())
    assert sharing.lend(request, attachments) is not None
    assert sharing.lend(*encoded(x=X)) is None
    assert len(begun) == 2, "the other one is in use"
    next(begun[1])
    begun[1].close()
    assert sharing.lend(*encoded(x=X)) is None
    assert len(begun) == 3, "the second one came to nothing"


def test_nothing_is_made_that_would_not_fit(pool: RegionPool) -> None:
    begun: list[Plan[None]] = []
    sharing = Sharing(pool, FIXED, begun.append)
    for _ in range(MAX_SEGMENTS):
        assert pool.make(1) is not None
    assert sharing.lend(*encoded(x=X)) is None
    assert begun == []


@pytest.mark.parametrize(
    ("code", "again"), [("FAILED_PRECONDITION", 0), ("UNIMPLEMENTED", 0), ("UNAVAILABLE", 1)]
)
def test_a_server_that_says_no_is_not_asked_again_unless_that_may_pass(
    pool: RegionPool, code: str, again: int
) -> None:
    sharing = Sharing(pool, FIXED, never)
    steps = sharing.grow(100)
    next(steps)
    with pytest.raises(StopIteration):
        steps.throw(refused(code, "R"))
    assert bool(sharing._lacks(*encoded(x=X))) == bool(again)
    assert pool.take(1) is None


def test_a_request_that_is_sent_again_has_all_that_it_had(pool: RegionPool) -> None:
    sharing = Sharing(pool, FIXED, never)
    grown(sharing, 4 << 20)
    x = X.copy()
    loan = lent(sharing, x=x, flag=np.array([True]))
    x[:] = -1
    again = loan.failed(refused("NOT_FOUND", "UNKNOWN_REGION"))
    assert again is not None
    data = serialize(*again)
    request, attachments = parse_infer_request(data)
    inputs = codec.decode_values(request.inputs, attachments)
    np.testing.assert_array_equal(inputs["x"], X)
    assert inputs["flag"] == [True]
    assert request.network == "net"
    assert b"output" not in data
    assert pool.take(1) is None, "the server does not know the segment"


@pytest.mark.parametrize(
    ("reason", "again"), [("UNKNOWN_REGION", True), ("REGION_TOO_SMALL", False)]
)
def test_a_session_s_request_is_sent_again_only_if_it_has_not_run(
    pool: RegionPool, reason: str, again: bool
) -> None:
    sharing = Sharing(pool, FIXED, never)
    grown(sharing, 4 << 20)
    loan = lent(sharing, x=X)
    loan.request.session.id = "s"
    assert (loan.failed(refused("INVALID_ARGUMENT", reason)) is not None) == again


def test_a_request_that_is_not_sent_gives_its_segment_back(pool: RegionPool) -> None:
    sharing = Sharing(pool, FIXED, never)
    grown(sharing, 4 << 20)
    lent(sharing, x=X).not_sent()
    loan = lent(sharing, x=X)
    loan.give_up()
    loan.not_sent()
    assert pool.take(1) is None, "the server may still use it"


@pytest.mark.parametrize(
    ("code", "reason", "kept"),
    [
        ("INVALID_ARGUMENT", "INVALID_ARGUMENT", True),
        ("RESOURCE_EXHAUSTED", "QUEUE_FULL", True),
        ("INVALID_ARGUMENT", "REGION_TOO_SMALL", True),
        ("RESOURCE_EXHAUSTED", "", False),  # gRPC's own words
        ("UNAVAILABLE", "UNAVAILABLE", False),
        ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", False),
        ("CANCELLED", "CANCELLED", False),
    ],
)
def test_a_segment_is_used_again_only_if_the_server_is_known_to_be_done(
    pool: RegionPool, code: str, reason: str, kept: bool
) -> None:
    sharing = Sharing(pool, FIXED, never)
    grown(sharing, 4 << 20)
    loan = lent(sharing, x=X)
    loan.failed(refused(code, reason))
    loan.give_up()
    assert (pool.take(1) is not None) == kept


def reply_with(place: pb.SharedMemory) -> bytes:
    reply = pb.InferReply(id="r")
    tensor = reply.outputs.add(name="y").tensor
    tensor.dtype = pb.FLOAT
    tensor.shape.append(place.bytes // 4)
    tensor.shared_memory.CopyFrom(place)
    return serialize(reply)


def test_outputs_are_copied_out(pool: RegionPool) -> None:
    sharing = Sharing(pool, FIXED, never)
    grown(sharing, 4 << 20)
    loan = lent(sharing, x=X)
    place = loan.request.output_regions["y"]
    segment = next(iter(pool._all))
    segment.memory[place.offset : place.offset + place.bytes] = X.view(np.uint8)
    outputs = loan.read(reply_with(place))
    assert pool.take(1) is segment
    segment.memory[:] = 0
    np.testing.assert_array_equal(outputs["y"], X)


@pytest.mark.parametrize("change", [{"region": "other"}, {"offset": 1 << 40}, {"bytes": 1 << 40}])
def test_a_reply_that_points_elsewhere_breaks_the_protocol(
    pool: RegionPool, change: dict[str, object]
) -> None:
    sharing = Sharing(pool, FIXED, never)
    grown(sharing, 4 << 20)
    loan = lent(sharing, x=X)
    place = loan.request.output_regions["y"]
    place.MergeFrom(pb.SharedMemory(**change))  # type: ignore[arg-type]
    with pytest.raises(errors.Internal, match="breaks the protocol"):
        loan.read(reply_with(place))


def test_sizes_come_from_ports_or_from_the_last_reply_to_such_inputs() -> None:
    request, _ = encoded(x=X)
    assert OutputSizes(FIXED).expected(request) == {"y": X.nbytes}
    assert OutputSizes(EVEN_LESS).expected(request) == {}
    sizes = OutputSizes(DYNAMIC)
    assert sizes.expected(request) == {}
    sizes.learn(request, {"y": X, "text": np.array(["a"] * 9_999, object)})
    assert sizes.expected(request) == {"y": X.nbytes}
    assert sizes.expected(encoded(x=X[:-1])[0]) == {}
    request.outputs.append("text")
    assert sizes.expected(request) == {}


def test_a_session_s_request_runs_once_so_only_fixed_sizes_count() -> None:
    sizes = OutputSizes(DYNAMIC)
    request, _ = encoded(x=X)
    sizes.learn(request, {"y": X})
    request.session.id = "s"
    assert sizes.expected(request) == {}
    assert OutputSizes(FIXED).expected(request) == {"y": X.nbytes}


def test_what_is_known_of_sizes_is_bounded() -> None:
    sizes = OutputSizes(DYNAMIC)
    for size in range(1, 3 * MAX_KNOWN):
        sizes.learn(encoded(x=X[:size])[0], {"y": X})
    assert len(sizes._last) <= MAX_KNOWN
