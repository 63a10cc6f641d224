"""Models that no device loads, and options that none of them is loaded with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx
import onnx.parser
from onnx import TensorProto, helper

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.bad_input import (
    CASE,
    EXISTS,
    FAILED,
    INVALID,
    MISSING,
    MODEL,
    NETWORK,
    Bad,
    Load,
    load,
)


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


def changed_model(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = onnx.ModelProto()
    model.CopyFrom(CASE.model)
    change(model)
    return model.SerializeToString()


def recursive() -> bytes:
    """A function that calls itself."""
    return text(
        "g (float[1] x) => (float[1] y) { y = own.f(x) }\n"
        '<domain: "own", opset_import: ["own": 1]> f (a) => (b) { b = own.f(a) }',
        '<ir_version: 10, opset_import: ["": 21, "own": 1]>',
    )


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


STRANGE = '<ir_version: 10, opset_import: ["": 21, "strange": 1]>'
UNTYPED = "g (float[1] x) => (int64[1] y) { u = strange.what(x) y = EyeLike<dtype = 7, k = 1>(u) }"
FUTURE = '<ir_version: 10, opset_import: ["": 999]>'


def deep_type(model: onnx.ModelProto) -> None:
    kind = model.graph.input[0].type
    for _ in range(80):
        kind = kind.sequence_type.elem_type
    kind.tensor_type.elem_type = TensorProto.FLOAT


def resized(model: onnx.ModelProto, size: int) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size


def retyped(model: onnx.ModelProto, dtype: int) -> None:
    model.graph.input[0].type.tensor_type.elem_type = dtype


def aged(model: onnx.ModelProto) -> None:
    model.ir_version = 999


MODELS = (
    Bad("empty model", load(b""), INVALID, "^model"),
    Bad("garbage", load(b"\xff\x00garbage" * 20), INVALID, "^model.*ONNX"),
    Bad("truncated model", load(MODEL[: len(MODEL) // 2]), INVALID, "^model"),
    Bad("text", load(b"<html>not found</html>"), INVALID, "^model"),
    Bad(
        "no output", load(changed_model(lambda m: m.graph.ClearField("output"))), INVALID, "^model"
    ),
    Bad(
        "affinities where nothing is split",
        load(affinities={"y": "TEMPLATE"}),
        INVALID,
        "^affinities.*HETERO",
    ),
    Bad("no source", load(model=pb.ModelSource()), INVALID, "^model"),
    Bad("external data above", load(external("../../etc/passwd")), INVALID, "model.*external|w"),
    Bad("external absolute", load(external("/etc/passwd")), INVALID, "model.*external|w"),
    Bad("external beside", load(external("weights.bin")), INVALID, "model.*external|w"),
    Bad("negative dimension", load(weight([-4], b"\0" * 16)), INVALID, "'w'|\\bw\\b"),
    Bad("overflowing weight", load(weight([2**62, 2**62], b"")), INVALID, "'w'|\\bw\\b"),
    Bad("short weight", load(weight([4], b"\0" * 15)), INVALID, "'w'|\\bw\\b"),
    Bad("exploding functions", load(exploding()), INVALID, "^model.*(inlin|function)"),
    Bad("a function that calls itself", load(recursive()), INVALID, "^model.*calls itself"),
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
        "types too deep",
        load(changed_model(deep_type)),
        INVALID,
        "^model",
    ),
    Bad(
        "an input twice",
        load(changed_model(lambda m: m.graph.input.append(m.graph.input[0]))),
        INVALID,
        "^model.*'x' occurs twice",
    ),
    Bad(
        "an input of negative size",
        load(changed_model(lambda m: resized(m, -5))),
        INVALID,
        "^model.*'x'.*negative",
    ),
    Bad(
        "an element type that is none",
        load(changed_model(lambda m: retyped(m, 77))),
        INVALID,
        "^model.*'x'.*77",
    ),
    Bad("an IR from the future", load(changed_model(aged)), INVALID, "^model.*IR version.*999"),
    Bad(
        "an opset from the future",
        load(text("g (float[1] x) => (float[1] y) { y = Neg(x) }", FUTURE)),
        INVALID,
        "^model.*opset 999",
    ),
    Bad(
        "no opset",
        load(changed_model(lambda m: m.ClearField("opset_import"))),
        INVALID,
        "^model.*opset_import",
    ),
    Bad(
        "unknown operators",
        load(networks.unknown_operators().model.SerializeToString()),
        FAILED,
        "^model.*strange.*stranger",
    ),
    Bad("a layer whose input has no type", load(text(UNTYPED, STRANGE)), FAILED, "^model.*what"),
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
    Bad("no name", load(name=""), INVALID, "^name: .*pass name="),
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
    Bad(
        "a layout that does not fit",
        load(inputs={"x": pb.InputOptions(layout="NHWC", network_layout="NCHW")}),
        INVALID,
        r"inputs\['x'\]\.layout.*rank 2",
    ),
    Bad(
        "a scale of zero",
        load(inputs={"x": pb.InputOptions(scale=[0.0])}),
        INVALID,
        r"inputs\['x'\]\.scale",
    ),
    Bad(
        "a resize that is none",
        load(inputs={"x": pb.InputOptions(resize="SPLINE")}),
        INVALID,
        r"inputs\['x'\]\.resize.*LINEAR",
    ),
    Bad(
        "options for no output",
        load(outputs={"nope": pb.OutputOptions(layout="NC")}),
        INVALID,
        r"outputs\['nope'\]",
    ),
    Bad("a key of the device's", load(config={"QUEUE_CAPACITY": "1"}), INVALID, "QUEUE_CAPACITY"),
    Bad("a number of 10,000 digits", load(config={"NUM_STREAMS": "9" * 10_000}), INVALID, "NUM_ST"),
    Bad("brackets too deep", load(device="[" * 200 + "CPU" + "]" * 200), INVALID, "^device"),
    Bad("a count of none", load(device="BATCH:TEMPLATE(0)"), INVALID, "^device.*count"),
)


NO_BATCHES = (
    "g (float[2,2] x, int64[n,1] i) => (float[a] y)"
    " { t = GatherND<batch_dims = -2>(x, i) y = Neg(t) }"
)
ON_CPU = (
    *(
        replace(bad, name=f"{bad.name}, on CPU", send=bad.send.on("CPU"))
        for bad in MODELS
        if isinstance(bad.send, Load)
    ),
    Bad("a layer that ends onnx", load(text(NO_BATCHES)).on("CPU"), FAILED, "batch_dims"),
)
