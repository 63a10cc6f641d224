"""Messages of very many parts, which take two bytes each on the wire and many in memory."""

from __future__ import annotations

from headrace.protobuf.fields import header
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.bad_input import INVALID, MODEL, Bad, call, raw, streamed


def field(number: int, payload: bytes) -> bytes:
    return header(number, len(payload)) + payload


MILLIONS = 3 << 20
PARTS = (
    Bad(
        "millions of empty strings",
        raw("Infer", field(3, field(2, b"\x22\x00" * MILLIONS))),
        INVALID,
        r"^inputs\.tensor\.strings: .* 1048576 parts.*fewer",
    ),
    Bad(
        "a sequence of millions of nothing",
        raw("Infer", field(3, field(3, b"\x0a\x00" * MILLIONS))),
        INVALID,
        r"^inputs\.sequence\.elements: .* 1048576 parts.*fewer",
    ),
    Bad(
        "a rank of millions",
        raw("Infer", field(3, field(2, field(2, bytes(MILLIONS))))),
        INVALID,
        r"^inputs\.tensor\.shape: .* 1048576 parts.*fewer",
    ),
    Bad(
        "millions of inputs and a group",
        raw("Infer", b"\x5b\x5c" + b"\x1a\x00" * MILLIONS),
        INVALID,
        "of the type headrace.v1.InferRequest",
    ),
    *(
        Bad(
            f"millions of {name} of {method}",
            raw(method, field(number, b"") * MILLIONS),
            INVALID,
            rf"^{name}: .* 131072 parts.*fewer",
        )
        for method, number, name in (
            ("LoadNetwork", 7, "affinities"),
            ("QueryNetwork", 4, "inputs"),
            ("SetConfig", 2, "config"),
            ("GetConfig", 3, "options"),
            ("GetMetric", 3, "options"),
        )
    ),
    Bad(
        "millions of options of an import",
        streamed("ImportNetwork", field(1, b"\x1a\x00" * MILLIONS)),
        INVALID,
        r"^options\.config: .* 131072 parts.*fewer",
    ),
    Bad(
        "options for inputs that no request could hold",
        call(
            "LoadNetwork",
            pb.LoadNetworkRequest(
                name="bad",
                device="TEMPLATE",
                model=pb.ModelSource(data=MODEL),
                inputs={f"x{number}": pb.InputOptions() for number in range(4097)},
            ),
        ),
        INVALID,
        "^inputs: .*4097.*at most 4096",
    ),
)
