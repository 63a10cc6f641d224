"""What a client may not send: each is refused with a status and a word on the field at fault.

Afterwards the server answers as it did before, and no number that it keeps has drifted.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    CALL_SECONDS,
    Server,
    Stream,
    assert_settled,
    details_of,
    infer_request,
    outcome_of,
)

INVALID, MISSING, EXISTS = "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS"
FAILED, EXHAUSTED = "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"
NETWORK = "sound"  # the network that stays loaded meanwhile
CASE = networks.add()
MODEL = CASE.model.SerializeToString()

Send = Callable[[Server], Any]


@dataclass(frozen=True)
class Bad:
    """One bad input.

    Attributes:
        send: sends it; has to raise RpcError.
        status: expected.
        says: a pattern found in "field: message".
    """

    name: str
    send: Send
    status: str
    says: str = field(default="")

    def __str__(self) -> str:
        return self.name


# ---- how each kind is sent ----


def load(data: bytes = MODEL, name: str = "bad", device: str = "TEMPLATE", **fields: Any) -> Send:
    def send(server: Server) -> None:
        source = fields.pop("model", None) or pb.ModelSource(data=data)
        request = pb.LoadNetworkRequest(name=name, model=source, device=device, **fields)
        server.stub.LoadNetwork(request, timeout=CALL_SECONDS)

    return send


def infer(change: Callable[[pb.InferRequest], object], network: str = NETWORK) -> Send:
    def send(server: Server) -> None:
        request = infer_request(network, CASE.inputs)
        change(request)
        server.stub.Infer(request, timeout=CALL_SECONDS)

    return send


def tensor(**fields: Any) -> Send:
    """The input x with these fields changed."""

    def change(request: pb.InferRequest) -> None:
        x = request.inputs[0].tensor
        for name, value in fields.items():
            if name in ("shape", "strings"):
                del getattr(x, name)[:]
                getattr(x, name).extend(value)
            else:
                setattr(x, name, value)

    return infer(change)


def call(method: str, request: Any) -> Send:
    return lambda server: getattr(server.stub, method)(request, timeout=CALL_SECONDS)


def raw(method: str, data: bytes) -> Send:
    def send(server: Server) -> None:
        path = f"/headrace.v1.InferenceEngine/{method}"
        server.channel.unary_unary(path)(data, timeout=CALL_SECONDS)

    return send


def blob(change: Callable[[bytes], bytes]) -> Send:
    return lambda server: server.import_blob(change(server.export(NETWORK)), "bad")


def imported(*parts: pb.ImportNetworkRequest) -> Send:
    return lambda server: server.stub.ImportNetwork(iter(parts), timeout=CALL_SECONDS)


def config(**entries: str) -> Send:
    target = pb.Target(device="TEMPLATE")
    return call("SetConfig", pb.SetConfigRequest(target=target, config=entries))


# ---- models ----


def model_bytes(graph: onnx.GraphProto, **fields: Any) -> bytes:
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=10, **fields
    ).SerializeToString()


def with_weight(weight: TensorProto) -> bytes:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "weighted",
        [value("x", TensorProto.FLOAT, [4])],
        [value("y", TensorProto.FLOAT, [4])],
        [weight],
    )
    return model_bytes(graph)


def external(location: str) -> bytes:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    return with_weight(weight)


def weight(dims: list[int], data: bytes) -> bytes:
    return with_weight(TensorProto(name="w", data_type=1, dims=dims, raw_data=data))


def exploding() -> bytes:
    """Thirty functions, each of which calls the one below twice: 2³⁰ nodes once inlined."""
    domain = "explode"
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    functions = [
        helper.make_function(
            domain,
            f"f{level}",
            ["a"],
            ["c"],
            [
                helper.make_node(operator, ["a"], ["b"], domain=where),
                helper.make_node(operator, ["b"], ["c"], domain=where),
            ],
            opsets,
        )
        for level in range(30)
        for operator, where in [(f"f{level - 1}", domain) if level else ("Neg", "")]
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("f29", ["x"], ["y"], domain=domain)],
        "explode",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
    )
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=10, functions=functions
    ).SerializeToString()


def text(graph: str, header: str = '<ir_version: 10, opset_import: ["": 21]>') -> bytes:
    return onnx.parser.parse_model(header + graph).SerializeToString()


def deep_bodies() -> bytes:
    """An If in an If, twenty times."""
    inner = "[leaf] y = Neg(x)"
    for level in range(20):
        inner = (
            f"[if{level}] y = If (c) <then_branch = t{level} () => (float[1] y) {{ {inner} }}, "
            f"else_branch = e{level} () => (float[1] z) {{ z = Neg(x) }}>"
        )
    # Names repeat between bodies; what is meant to be refused is the depth.
    return text(f"deep (bool c, float[1] x) => (float[1] y) {{ {inner} }}")


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


MODELS = (
    Bad("empty model", load(b""), INVALID, "^model"),
    Bad("garbage", load(b"\xff\x00garbage" * 20), INVALID, "^model.*ONNX"),
    Bad("truncated model", load(MODEL[: len(MODEL) // 2]), INVALID, "^model"),
    Bad("text", load(b"<html>not found</html>"), INVALID, "^model"),
    Bad("no source", load(model=pb.ModelSource()), INVALID, "^model"),
    Bad("external data above", load(external("../../etc/passwd")), INVALID, "model.*external|w"),
    Bad("external absolute", load(external("/etc/passwd")), INVALID, "model.*external|w"),
    Bad("external beside", load(external("weights.bin")), INVALID, "model.*external|w"),
    Bad("negative dimension", load(weight([-4], b"\0" * 16)), INVALID, "'w'|\\bw\\b"),
    Bad("overflowing weight", load(weight([2**62, 2**62], b"")), INVALID, "'w'|\\bw\\b"),
    Bad("short weight", load(weight([4], b"\0" * 15)), INVALID, "'w'|\\bw\\b"),
    Bad("exploding functions", load(exploding()), INVALID, "^model.*(inlin|function)"),
    Bad("bodies too deep", load(deep_bodies()), INVALID, "^model.*(deep|nest|within)"),
    Bad(
        "a value defined twice",
        load(text("g (float[1] x) => (float[1] y) { y = Neg(x) y = Abs(x) }")),
        INVALID,
        "^model.*y",
    ),
    Bad(
        "a value from nowhere",
        load(text("g (float[1] x) => (float[1] y) { y = Add(x, nowhere) }")),
        INVALID,
        "^model.*nowhere",
    ),
    Bad(
        "a cycle",
        load(text("g (float[1] x) => (float[1] y) { a = Add(x, y) y = Neg(a) }")),
        INVALID,
        "^model",
    ),
    Bad(
        "unknown operators",
        load(networks.unknown_operators().model.SerializeToString()),
        FAILED,
        "^model.*strange.*stranger",
    ),
    Bad(
        "unknown digest", load(model=pb.ModelSource(digest="sha256:" + "0" * 64)), MISSING, "diges"
    ),
    Bad(
        "a digest that is none", load(model=pb.ModelSource(digest="../x")), INVALID, "model.digest"
    ),
    Bad(
        "no repository",
        load(model=pb.ModelSource(repository="../secret"), name=""),
        INVALID,
        "name",
    ),
    Bad(
        "repository above",
        load(model=pb.ModelSource(repository="../secret")),
        FAILED,
        "model.repository",
    ),
)

NAMES = (
    Bad("no name", load(name=""), INVALID, "^name"),
    Bad("name with ..", load(name="../bad"), INVALID, "^name"),
    Bad("name of dots", load(name=".."), INVALID, "^name"),
    Bad("name with a slash", load(name="a/b"), INVALID, "^name"),
    Bad("name with NUL", load(name="a\0b"), INVALID, "^name"),
    Bad("name too long", load(name="a" * 129), INVALID, "^name"),
    Bad("name in use", load(name=NETWORK), EXISTS, NETWORK),
    Bad("no device", load(device=""), INVALID, "^device"),
    Bad("unknown device", load(device="TEMPLAET"), MISSING, "^device.*did you mean 'TEMPLATE'"),
    Bad("device grammar", load(device="HETERO:(,"), INVALID, "^device"),
    Bad("unknown device id", load(device="TEMPLATE.7"), MISSING, "(?i)device"),
    Bad("unknown key", load(config={"NUM_STREAM": "1"}), MISSING, "NUM_STREAM.*did you mean"),
    Bad("NaN configuration", load(config={"EXECUTION_TIMEOUT": "nan"}), INVALID, "EXECUTION_TIM"),
    Bad("cache above", load(config={"CACHE_DIR": "../../tmp"}), INVALID, "CACHE_DIR"),
    Bad(
        "preprocessing of no input",
        load(inputs={"nope": pb.InputOptions(layout="NHWC")}),
        INVALID,
        "no input 'nope'",
    ),
    Bad("layout twice N", load(inputs={"x": pb.InputOptions(layout="NN")}), INVALID, "layout"),
    Bad(
        "NaN scale",
        load(inputs={"x": pb.InputOptions(scale=[math.nan])}),
        INVALID,
        "scale",
    ),
    Bad(
        "a wire dtype that is none",
        load(inputs={"x": pb.InputOptions(dtype=99)}),  # type: ignore[arg-type]
        INVALID,
        "dtype",
    ),
)

TENSORS = (
    Bad("unknown network", infer(lambda r: None, "soudn"), MISSING, "did you mean 'sound'"),
    Bad("no inputs", infer(lambda r: r.ClearField("inputs")), INVALID, "inputs"),
    Bad("input missing", infer(lambda r: r.inputs.pop()), INVALID, r"inputs\['y'\]"),
    Bad(
        "input unknown", infer(lambda r: r.inputs.add(name="w").absent.SetInParent()), INVALID, "w"
    ),
    Bad("input twice", infer(lambda r: r.inputs.append(r.inputs[0])), INVALID, r"'x'\].*twice"),
    Bad("value of no kind", infer(lambda r: r.inputs[0].ClearField("tensor")), INVALID, "'x'"),
    Bad("absent input", infer(lambda r: r.inputs[0].absent.SetInParent()), INVALID, "'x'"),
    Bad("a sequence", infer(lambda r: r.inputs[0].sequence.SetInParent()), INVALID, "'x'"),
    Bad("dtype 99", tensor(dtype=99), INVALID, r"'x'\]\.dtype"),
    Bad("other dtype", tensor(dtype=pb.INT32), INVALID, r"'x'\].*dtype"),
    Bad("other rank", tensor(shape=[6]), INVALID, r"'x'\].*shape"),
    Bad("other shape", tensor(shape=[3, 2]), INVALID, r"'x'\].*shape"),
    Bad("negative size", tensor(shape=[-2, -3]), INVALID, r"'x'\]\.shape.*negative"),
    Bad("overflowing shape", tensor(shape=[2**62, 2**62]), INVALID, r"'x'\]\.shape.*overflow"),
    Bad("rank of 1000", tensor(shape=[1] * 1000), INVALID, r"'x'\]\.shape.*dimensions"),
    Bad("too few bytes", tensor(data=b"\0" * 23), INVALID, r"'x'\]\.data.*23 bytes"),
    Bad("too many bytes", tensor(data=b"\0" * 25), INVALID, r"'x'\]\.data.*25 bytes"),
    Bad("strings in floats", tensor(strings=[b"a"]), INVALID, r"'x'\]\.strings"),
    Bad("attachment 7 of 0", tensor(attachment=7, data=b""), INVALID, r"'x'\]\.attachment"),
    Bad("output unknown", infer(lambda r: r.outputs.append("nope")), INVALID, "outputs.*nope"),
    Bad("priority", infer(lambda r: setattr(r, "priority", 11)), INVALID, "^priority"),
    Bad(
        "NaN timeout", infer(lambda r: setattr(r, "timeout_seconds", math.nan)), INVALID, "timeout"
    ),
    Bad("past timeout", infer(lambda r: setattr(r, "timeout_seconds", -1)), INVALID, "timeout"),
    Bad("id too long", infer(lambda r: setattr(r, "id", "i" * 129)), INVALID, "^id"),
    Bad("bytes that are no message", raw("Infer", b"\xff" * 64), INVALID, "InferRequest"),
    Bad("an oversize message", raw("Infer", b"\0" * (65 << 20)), EXHAUSTED, "(?i)larger"),
)

CONFIGURATION = (
    Bad("unknown key set", config(NUM_STREAMZ="1"), MISSING, "NUM_STREAMZ.*did you mean"),
    Bad("not a number", config(NUM_STREAMS="many"), INVALID, "NUM_STREAMS"),
    Bad("out of range", config(NUM_STREAMS="-1"), INVALID, "NUM_STREAMS"),
    Bad("infinite timeout", config(EXECUTION_TIMEOUT="inf"), INVALID, "EXECUTION_TIMEOUT"),
    Bad("no target", call("SetConfig", pb.SetConfigRequest(config={"A": "1"})), INVALID, "target"),
    Bad(
        "unknown metric",
        call(
            "GetMetric",
            pb.GetMetricRequest(target=pb.Target(device="TEMPLATE"), name="FULL_DEVICE_NAM"),
        ),
        MISSING,
        "^name.*did you mean 'FULL_DEVICE_NAME'",
    ),
    Bad(
        "metric of no network",
        call("GetMetric", pb.GetMetricRequest(target=pb.Target(network="no"), name="X")),
        MISSING,
        "'no'",
    ),
    Bad(
        "DEVICE_ID that is none",
        call(
            "GetMetric",
            pb.GetMetricRequest(
                target=pb.Target(device="TEMPLATE"),
                name="FULL_DEVICE_NAME",
                options={"DEVICE_ID": "7"},
            ),
        ),
        MISSING,
        "(?i)device",
    ),
    Bad(
        "unload unknown", call("UnloadNetwork", pb.UnloadNetworkRequest(name="no")), MISSING, "'no'"
    ),
    Bad("get unknown", call("GetNetwork", pb.GetNetworkRequest(name="no")), MISSING, "'no'"),
    Bad(
        "extension of garbage",
        call("AddExtension", pb.AddExtensionRequest(device="TEMPLATE", functions=b"\xffgarbage")),
        INVALID,
        "functions",
    ),
    Bad(
        "query of garbage",
        call(
            "QueryNetwork",
            pb.QueryNetworkRequest(model=pb.ModelSource(data=b"\xff"), device="TEMPLATE"),
        ),
        INVALID,
        "^model",
    ),
)

BLOBS = (
    Bad("empty blob", blob(lambda b: b""), INVALID, "blob"),
    Bad("garbage blob", blob(lambda b: b"garbage" * 100), INVALID, "blob"),
    Bad("truncated blob", blob(lambda b: b[:-40]), INVALID, "blob.*truncated"),
    Bad("longer blob", blob(lambda b: b + b"\0"), INVALID, "blob.*longer"),
    Bad("flipped network", blob(lambda b: flipped(b, len(b) - 64)), INVALID, "blob.*SHA-256"),
    Bad("flipped version", blob(lambda b: flipped(b, 16)), INVALID, "blob.*version"),
    Bad("flipped header", blob(lambda b: flipped(b, 60)), INVALID, "blob.*SHA-256"),
    Bad("absurd length", blob(lambda b: b[:17] + b"\x7f" * 4 + b[21:]), INVALID, "blob.*header"),
    Bad("import of nothing", imported(), INVALID, "options"),
    Bad(
        "blob before the options",
        imported(pb.ImportNetworkRequest(chunk=b"x")),
        INVALID,
        "options",
    ),
    Bad(
        "options twice",
        imported(*[pb.ImportNetworkRequest(options=pb.ImportOptions(name="bad"))] * 2),
        INVALID,
        "chunk",
    ),
    Bad("export unknown", lambda server: server.export("no"), MISSING, "'no'"),
)

TABLE = (*MODELS, *NAMES, *TENSORS, *CONFIGURATION, *BLOBS)


@pytest.fixture(scope="module")
def sound(server: Server) -> Iterator[Server]:
    """The server with one network; at the end nothing else is left and nothing has drifted."""
    server.load(CASE, "TEMPLATE", NETWORK)
    yield server
    assert server.networks() == [NETWORK]
    assert_settled(server)
    server.unload(NETWORK)


def assert_answers(server: Server) -> None:
    outputs = server.infer(NETWORK, CASE.inputs)
    np.testing.assert_allclose(np.asarray(outputs["z"]), CASE.expected()["z"])


@pytest.mark.parametrize("bad", TABLE, ids=str)
def test_bad_input_is_refused_by_name(sound: Server, bad: Bad) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        bad.send(sound)
    details = details_of(caught.value)
    assert details.code.name == bad.status, details.message
    assert re.search(bad.says, f"{details.field or ''}: {details.message}", re.DOTALL), details
    assert_answers(sound)
    assert_settled(sound)


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


def test_a_stream_of_garbage_ends_alone(sound: Server) -> None:
    method = sound.channel.stream_stream("/headrace.v1.InferenceEngine/InferStream")
    with pytest.raises(grpc.RpcError) as caught:
        list(method(iter([b"\xff" * 32]), timeout=CALL_SECONDS))
    assert caught.value.code().name == INVALID
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
    assert sound.networks() == [NETWORK]


def test_every_kind_of_bad_input_is_in_the_table() -> None:
    assert len(TABLE) >= 40
    assert len({bad.name for bad in TABLE}) == len(TABLE)
