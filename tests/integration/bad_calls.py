"""Requests, messages, configuration and blobs that are refused."""

from __future__ import annotations

import math

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.bad_input import (
    EXHAUSTED,
    EXISTS,
    INVALID,
    MISSING,
    MODEL,
    NETWORK,
    Bad,
    blob,
    call,
    config,
    imported,
    infer,
    on_a_stream,
    raw,
    streamed,
    tensor,
)
from tests.integration.bad_models import recursive


def nested_sequences(request: pb.InferRequest) -> None:
    value = request.inputs[0]
    for _ in range(30):
        value = value.sequence.elements.add()
    value.absent.SetInParent()


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


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
    Bad("sequences too deep", infer(nested_sequences), INVALID, r"inputs\['x'\]"),
    Bad("no dtype", tensor(dtype=0), INVALID, r"'x'\]\.dtype"),
    Bad("bytes in strings", tensor(dtype=pb.STRING), INVALID, r"'x'\]\.data.*strings"),
    Bad("an empty shape", tensor(shape=[0, 3], data=b""), INVALID, r"'x'\]\.shape"),
    Bad(
        "the least integer as a size",
        tensor(shape=[-(2**63), 3]),
        INVALID,
        r"'x'\]\.shape.*negative",
    ),
    Bad(
        "an output twice", infer(lambda r: r.outputs.extend(["z", "z"])), INVALID, "^outputs.*twice"
    ),
    Bad(
        "endless timeout",
        infer(lambda r: setattr(r, "timeout_seconds", math.inf)),
        INVALID,
        "timeout",
    ),
    Bad("an id used twice", on_a_stream(lambda r: None), INVALID, "^id.*in flight"),
    Bad("no id on a stream", on_a_stream(lambda r: r.ClearField("id")), INVALID, "^id"),
    Bad("an oversize message", raw("Infer", b"\0" * (65 << 20)), EXHAUSTED, "(?i)larger"),
)

MESSAGES = (
    *(
        Bad(
            f"garbage for {name}",
            raw(name, b"\xff" * 64),
            INVALID,
            f"of the type headrace.v1.{kind}",
        )
        for name, kind in (
            ("Infer", "InferRequest"),
            ("LoadNetwork", "LoadNetworkRequest"),
            ("UnloadNetwork", "UnloadNetworkRequest"),
            ("QueryNetwork", "QueryNetworkRequest"),
            ("SetConfig", "SetConfigRequest"),
            ("AddExtension", "AddExtensionRequest"),
            ("ExportNetwork", "ExportNetworkRequest"),
        )
    ),
    Bad(
        "garbage for UploadModel",
        streamed("UploadModel", b"\xff" * 64),
        INVALID,
        "of the type headrace.v1.UploadModelRequest",
    ),
    Bad(
        "garbage for ImportNetwork",
        streamed("ImportNetwork", b"\xff" * 64),
        INVALID,
        "of the type headrace.v1.ImportNetworkRequest",
    ),
    Bad("an upload of nothing", streamed("UploadModel"), INVALID, "^chunk.*empty"),
    Bad("a method that is none", raw("LoadNetwrok", b""), "UNIMPLEMENTED", "Method"),
)

OWN_OPERATOR = networks.local_function().model.SerializeToString()
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
        "extension of no functions",
        call("AddExtension", pb.AddExtensionRequest(device="CPU", functions=MODEL)),
        INVALID,
        "^functions.*no local functions",
    ),
    Bad(
        "extension that calls itself",
        call("AddExtension", pb.AddExtensionRequest(device="CPU", functions=recursive())),
        INVALID,
        "^functions.*calls itself",
    ),
    Bad(
        "extension of a device that takes none",
        call("AddExtension", pb.AddExtensionRequest(device="TEMPLATE", functions=OWN_OPERATOR)),
        "UNIMPLEMENTED",
        "TEMPLATE takes no extensions",
    ),
    Bad(
        "a key that is fixed at load",
        call(
            "SetConfig",
            pb.SetConfigRequest(target=pb.Target(network=NETWORK), config={"NUM_STREAMS": "2"}),
        ),
        INVALID,
        "NUM_STREAMS.*EXECUTION_TIMEOUT",
    ),
    Bad(
        "an option that is none",
        call(
            "GetMetric",
            pb.GetMetricRequest(
                target=pb.Target(device="TEMPLATE"),
                name="FULL_DEVICE_NAME",
                options={"DEVICE": "0"},
            ),
        ),
        MISSING,
        "^options.*DEVICE_ID",
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
    Bad("longer blob", blob(lambda b: b + b"\0"), INVALID, "blob.*its lengths add up to"),
    Bad("flipped network", blob(lambda b: flipped(b, len(b) - 64)), INVALID, "blob.*SHA-256"),
    Bad("flipped version", blob(lambda b: flipped(b, 16)), INVALID, "blob.*version"),
    Bad("flipped header", blob(lambda b: flipped(b, 60)), INVALID, "blob.*SHA-256"),
    Bad("absurd length", blob(lambda b: b[:17] + b"\x7f" * 4 + b[21:]), INVALID, "blob.*header"),
    Bad(
        "import under a path",
        lambda server: server.import_blob(server.export(NETWORK), "../bad"),
        INVALID,
        "^name",
    ),
    Bad(
        "import under a name in use",
        lambda server: server.import_blob(server.export(NETWORK), NETWORK),
        EXISTS,
        NETWORK,
    ),
    Bad(
        "import to no device",
        lambda server: server.import_blob(server.export(NETWORK), "bad", "TEMPLAET"),
        MISSING,
        "^device.*did you mean 'TEMPLATE'",
    ),
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
