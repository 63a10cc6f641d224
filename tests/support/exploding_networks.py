"""Small networks whose shapes, computed without bounds, fill the memory.

As a program it infers the types of all of them, queries and loads them on CPU, and checks them
for BATCH, in 3 GiB.
"""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from headrace.plugins.batch.claims.mixing import check_layers, check_ports
from headrace.plugins.cpu import create_plugin
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import FailedPrecondition, HeadraceError
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import network_of
from headrace.testing.services import services
from tests.support.model_zoo import FLOAT, INT64, function, graph, model, node, value

_GIB = 2**30
_LEVELS = 40


def chain(operator: str, times: int, *, arity: int = 2, first: str = "x") -> list[onnx.NodeProto]:
    """Layers that each read the one before `arity` times."""
    names = [first, *(f"t{at}" for at in range(times))]
    return [
        node(operator, [names[at]] * arity, [names[at + 1]], name=f"c{at}") for at in range(times)
    ]


def concats(axis: int, times: int = _LEVELS) -> onnx.ModelProto:
    """A shape whose elements double with each layer, as far as onnx knows their values."""
    nodes = chain("Concat", times)
    for each in nodes:
        each.attribute.append(onnx.helper.make_attribute("axis", axis))
    shape: Sequence[int | str] = [1] if axis == 0 else ["N", 1]
    last = f"t{times - 1}"
    return model(nodes, [value("x", shape)], [value(last, None)])


def gathers() -> list[onnx.NodeProto]:
    """A rank that doubles with each layer."""
    return [
        node("Shape", ["x"], ["s"]),
        node("Unsqueeze", ["s", "axes"], ["u"]),
        *chain("Gather", _LEVELS, first="u"),
    ]


def exploding() -> Iterator[onnx.ModelProto]:
    axes = {"axes": np.array([0], np.int64)}
    inputs, last = [value("x", ("N", 3))], f"t{_LEVELS - 1}"
    yield concats(0)
    yield concats(1)
    yield model(gathers(), inputs, [value(last, None, INT64)], axes)
    body = graph(gathers(), [], [value(last, None, INT64)], axes)
    flag = value("flag", [], TensorProto.BOOL)
    branch = node("If", ["flag"], ["y"], then_branch=body, else_branch=body)
    yield model([branch], [*inputs, flag], [value("y", None, INT64)])
    start = node("Constant", [], ["axes"], value_ints=[0])
    end = node("Identity", [last], ["b"])
    renamed = [node("Identity", ["a"], ["x"]), start, *gathers(), end]
    calls = [node("explode", ["x"], ["y"], domain="f")]
    functions = [function("explode", renamed)]
    yield model(
        calls, inputs, [value("y", None, INT64)], functions=functions, domains=["f"], opset=17
    )
    counted = [node("Range", ["zero", "many", "one"], ["r"]), node("Cast", ["r"], ["c"], to=FLOAT)]
    nodes = [*counted, node("Add", ["x", "c"], ["y"])]
    numbers = {"zero": np.array(0), "many": np.array(2**33), "one": np.array(1)}
    yield model(nodes, inputs, [value("y", None)], numbers)
    column = {"a": np.zeros((4096, 1), np.int64), "b": np.zeros((1, 4096), np.int64)}
    nodes = [node("Add", ["a", "b"], ["t"]), node("Gather", ["t", "t"], ["u"])]
    nodes += [node("Cast", ["u"], ["c"], to=FLOAT), node("Add", ["x", "c"], ["y"])]
    yield model(nodes, inputs, [value("y", None)], column)
    many = {"axes": np.arange(20_000, dtype=np.int64)}
    unsqueezed = [node("Unsqueeze", ["x", "axes"], ["t"]), *chain("Relu", 200, arity=1, first="t")]
    yield model(unsqueezed, inputs, [value("t199", None, FLOAT)], many)
    nodes = [node("Unsqueeze", ["x"], ["t"], axes=list(range(4_000)))]
    nodes += chain("Relu", 200, arity=1, first="t")
    yield model(nodes, inputs, [value("t199", None, FLOAT)], opset=11)

    yield from lists_of_sizes()


def lists_of_sizes() -> Iterator[onnx.ModelProto]:
    """A list of sizes, so a rank, that doubles with each layer."""
    twice = {"twice": np.array([2], np.int64)}
    concats = chain("Concat", _LEVELS, first="s")
    for each in concats:
        each.attribute.append(onnx.helper.make_attribute("axis", 0))
    names = ["s", *(f"t{at}" for at in range(_LEVELS))]
    tiles = [node("Tile", [a, "twice"], [b]) for a, b in pairwise(names)]
    ends = (
        node("ConstantOfShape", [names[-1]], ["y"]),
        node("Expand", ["x", names[-1]], ["y"]),
        node("Reshape", ["x", names[-1]], ["y"]),
    )
    start, inputs, outputs = node("Shape", ["x"], ["s"]), [value("x", ("N", 3))], [value("y", None)]
    for end in ends:
        for middle in (concats, tiles):
            yield model([start, *middle, end], inputs, outputs, twice)
    lie = [value(names[-1], [5], INT64)]
    proto = model([start, *concats, ends[0]], inputs, outputs)
    proto.graph.value_info.extend(lie)
    yield proto
    body = graph([start, *concats, ends[0]], [], outputs)
    flag = value("flag", [], TensorProto.BOOL)
    branch = node("If", ["flag"], ["y"], then_branch=body, else_branch=body)
    yield model([branch], [*inputs, flag], outputs)
    functions = [
        function(
            "explode",
            [
                node("Identity", ["a"], ["x"]),
                start,
                *concats,
                ends[0],
                node("Identity", ["y"], ["b"]),
            ],
        )
    ]
    calls = [node("explode", ["x"], ["y"], domain="f")]
    yield model(calls, inputs, outputs, functions=functions, domains=["f"], opset=17)
    numbers = {"s": np.array([1, 2]), "n": np.array([2**28])}
    sums = node("ReduceSum", [names[25]], ["u"], keepdims=0), node("Cast", ["u"], ["c"], to=FLOAT)
    folded = [*concats[:25], *sums, node("Add", ["x", "c"], ["y"])]
    yield model(folded, inputs, outputs, numbers)  # of constants alone
    filled = [node("ConstantOfShape", ["n"], ["f"]), node("ReduceSum", ["f"], ["c"], keepdims=0)]
    yield model([*filled, node("Add", ["x", "c"], ["y"])], inputs, outputs, numbers)
    known = [value("x", ("N", 3)), value("s", [2**40], INT64)]
    yield model([node("ConstantOfShape", ["s"], ["y"])], known, outputs)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (3 * _GIB, 3 * _GIB))
    with services() as offered:
        _look_at_all(create_plugin("CPU", offered, {}))
    status = Path("/proc/self/status").read_text()  # getrusage counts the parent's memory, too
    peak = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
    if peak > _GIB:
        sys.exit(f"took {peak} bytes")


def _look_at_all(cpu: Plugin) -> None:
    for proto in exploding():
        network = network_of(proto)
        transform_network(network)
        with suppress(HeadraceError):
            cpu.query_network(network, {})
            cpu.load_network(Load(network))
        try:
            check_ports(network)
            check_layers(network)
        except FailedPrecondition as error:
            sys.stdout.write(f"{error.message}\n")
        else:
            sys.stdout.write("batchable\n")


if __name__ == "__main__":
    main()
