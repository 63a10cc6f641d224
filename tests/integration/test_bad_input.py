"""What a client may not send: each is refused with a status and a word on the field at fault.

Afterwards the server answers as it did before, and no number that it keeps has drifted.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.bad_calls import BLOBS, CONFIGURATION, MESSAGES, TENSORS
from tests.integration.bad_input import (
    CASE,
    ENDLESS,
    INVALID,
    LOADED,
    MISSING,
    MODEL,
    NETWORK,
    Bad,
    load,
    refusal,
)
from tests.integration.bad_models import MODELS, NAMES, ON_CPU, external
from tests.integration.bad_parts import PARTS, field
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    Stream,
    assert_settled,
    infer_request,
    outcome_of,
)

TABLE = (*MODELS, *ON_CPU, *NAMES, *TENSORS, *PARTS, *MESSAGES, *CONFIGURATION, *BLOBS)


@pytest.fixture(scope="module")
def sound(server: Server) -> Iterator[Server]:
    """The server with two networks; at the end nothing else is left and nothing has drifted."""
    server.load(CASE, "TEMPLATE", NETWORK)
    server.load(ENDLESS, "TEMPLATE")
    resident = server.total("process_resident_memory_bytes")
    yield server
    assert server.networks() == LOADED
    assert_settled(server)
    assert server.total("process_resident_memory_bytes") < resident + (256 << 20)
    server.unload(*LOADED)


def assert_answers(server: Server) -> None:
    outputs = server.infer(NETWORK, CASE.inputs)
    np.testing.assert_allclose(np.asarray(outputs["z"]), CASE.expected()["z"])


@pytest.mark.parametrize("bad", TABLE, ids=str)
def test_bad_input_is_refused_by_name(sound: Server, bad: Bad) -> None:
    details = refusal(bad, sound)
    assert details.code.name == bad.status, details.message
    assert re.search(bad.says, f"{details.field or ''}: {details.message}", re.DOTALL), details
    assert_answers(sound)
    assert sound.networks() == LOADED


def test_wrong_mac_means_compiled_anew(sound: Server) -> None:
    """Native bytes that another key signed are no error, but never reach the device."""
    data = sound.export(NETWORK)
    prefix = struct.Struct(">13sIIQQ")
    _, _, header, network, _ = prefix.unpack_from(data)
    digest_at = prefix.size + header
    digest = data[digest_at : digest_at + 32]
    forged = hmac.new(b"another server's key", digest, hashlib.sha256).digest()
    assert len(data) >= digest_at + 32 + network + 32
    info = sound.import_blob(data[:-32] + forged, "forged")
    assert any("anew" in note for note in info.notes), info.notes
    outputs = sound.infer("forged", CASE.inputs)
    np.testing.assert_allclose(np.asarray(outputs["z"]), CASE.expected()["z"])
    sound.unload("forged")


def test_bad_requests_end_themselves_and_not_their_stream(sound: Server) -> None:
    stream = Stream(sound.stub)
    nameless = infer_request(NETWORK, CASE.inputs)
    unknown = infer_request("no", CASE.inputs, id="unknown")
    short = infer_request(NETWORK, CASE.inputs, id="short")
    short.inputs[0].tensor.data = b"\0"
    good = infer_request(NETWORK, CASE.inputs, id="good")
    stream.send(nameless, unknown, short, good, cancel=["never sent"])
    stream.done()
    outcomes = {each.id: outcome_of(each) for each in stream.results}
    assert outcomes == {"": INVALID, "unknown": MISSING, "short": INVALID, "good": "OK"}


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckRequest"),
        ("grpc.health.v1.Health/List", "grpc.health.v1.HealthListRequest"),
        ("grpc.health.v1.Health/Watch", "grpc.health.v1.HealthCheckRequest"),
        (
            "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            "grpc.reflection.v1alpha.ServerReflectionRequest",
        ),
    ],
)
def test_garbage_for_another_service_is_an_invalid_argument_as_well(
    sound: Server, method: str, kind: str
) -> None:
    logged = len(sound.log())
    with pytest.raises(grpc.RpcError) as caught:
        list(sound.channel.stream_stream(f"/{method}")(iter([b"\xff\xff"]), timeout=CALL_SECONDS))
    assert caught.value.code().name == INVALID
    assert caught.value.details() == f"the bytes are not a message of the type {kind}"
    assert "Traceback" not in sound.log()[logged:]


def test_a_call_without_a_message_is_told_so(sound: Server) -> None:
    method = sound.channel.stream_unary("/headrace.v1.InferenceEngine/Infer")
    with pytest.raises(grpc.RpcError) as caught:
        method(iter(()), timeout=CALL_SECONDS)
    assert caught.value.code().name == INVALID


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"\xff" * 32, "of the type headrace.v1.InferStreamRequest"),
        (field(1, b"") * 20_000, "^requests.* 4096 .*send several"),
        (field(1, field(3, b"\x1a\x00" * 10_000)) * 200, r"^requests\.inputs: .* parts.*fewer"),
    ],
    ids=["bytes that are none", "very many requests", "requests of very many parts"],
)
def test_a_stream_of_garbage_ends_alone(sound: Server, message: bytes, says: str) -> None:
    method = sound.channel.stream_stream("/headrace.v1.InferenceEngine/InferStream")
    with pytest.raises(grpc.RpcError) as caught:
        list(method(iter([message]), timeout=CALL_SECONDS))
    assert caught.value.code().name == INVALID
    assert re.search(says, caught.value.details() or "")
    assert_answers(sound)


def test_a_stream_of_garbage_behind_a_request_gets_its_status_whatever_is_being_written(
    sound: Server,
) -> None:
    method = sound.channel.stream_stream("/headrace.v1.InferenceEngine/InferStream")
    request = infer_request(NETWORK, CASE.inputs, id="good")
    good = pb.InferStreamRequest(requests=[request]).SerializeToString()
    calls = [method(iter([good, b"\xff\xff"]), timeout=CALL_SECONDS) for _ in range(100)]
    for call in calls:
        with pytest.raises(grpc.RpcError):
            list(call)
    assert {call.code().name for call in calls} == {INVALID}
    assert_answers(sound)


@pytest.mark.parametrize("method", ["UploadModel", "ImportNetwork", "InferStream"])
def test_a_stream_that_stops_half_way_leaves_nothing(sound: Server, method: str) -> None:
    stopped = threading.Event()
    sent = threading.Event()
    first = {
        "UploadModel": pb.UploadModelRequest(chunk=MODEL[:20]),
        "ImportNetwork": pb.ImportNetworkRequest(options=pb.ImportOptions(name="half")),
        "InferStream": pb.InferStreamRequest(
            requests=[infer_request(NETWORK, CASE.inputs, id="half")]
        ),
    }[method]

    def requests() -> Iterator[Any]:
        yield first
        sent.set()  # asked for the second, so the first is on its way
        stopped.wait(CALL_SECONDS)

    channel = sound.connect()
    multi = method == "InferStream"
    path = f"/headrace.v1.InferenceEngine/{method}"
    make = channel.stream_stream if multi else channel.stream_unary
    caller = make(path, request_serializer=lambda message: message.SerializeToString())
    call = caller(requests(), timeout=CALL_SECONDS) if multi else caller.future(requests())
    assert sent.wait(CALL_SECONDS)
    channel.close()
    stopped.set()
    with pytest.raises((grpc.RpcError, grpc.FutureCancelledError, ValueError)):
        list(call) if multi else call.result()
    assert_answers(sound)
    assert sound.networks() == LOADED


def test_a_network_of_the_repository_reads_nothing_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    locations = {
        "inside": "weights.bin",
        "above": "../../secret.bin",
        "around": "../around/../../secret.bin",
        "absolute": str(tmp_path / "secret.bin"),
        "link": "link.bin",
        "device": "/dev/zero",
    }
    for name, location in locations.items():
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(external(location))
        (folder / "network.toml").write_text('device = "TEMPLATE"\n')
    (tmp_path / "models/inside/weights.bin").write_bytes(np.ones(4, np.float32).tobytes())
    (tmp_path / "models/link/link.bin").symlink_to(tmp_path / "secret.bin")
    with Server(*BASIC, "--model-repository", str(tmp_path / "models")) as server:
        assert server.networks() == ["inside"]
        outputs = server.infer("inside", {"x": np.zeros(4, np.float32)})
        assert np.asarray(outputs["y"]).tolist() == [1] * 4
        for name in locations.keys() - {"inside"}:
            source = pb.ModelSource(repository=name)
            bad = Bad(name, load(model=source, name=f"{name}-again"), INVALID)
            details = refusal(bad, server)
            assert (details.code.name, details.field) == (INVALID, "model"), details
            assert "'w'" in details.message
            assert "folder" in details.message
        source = pb.ModelSource(repository="insied")
        assert refusal(Bad("none", load(model=source), MISSING), server).code.name == MISSING
        assert server.stop() == 0, server.log()


def test_every_kind_of_bad_input_is_in_the_table() -> None:
    assert len(TABLE) >= 40
    assert len({bad.name for bad in TABLE}) == len(TABLE)
