"""Requests whose tensors lie in memory that a client has handed over: what is copied, and when."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.network.network import Port
from headrace.server.services.shared_tensors import _MAX_VIEWS, tensors
from headrace.server.shared_memory.handed import HandedRegion, open_memory
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.placed import Placed
from headrace.wire.request import InRegion, RequestLayouts
from tests.support.memory import PAGE, memfd

SHAPE = (4, 4)
SIZE = 64
NOWHERE: Mapping[str, tuple[int, int]] = {}
OUTPUTS = (Port("y", ir.DataType.FLOAT, SHAPE), Port("z", ir.DataType.FLOAT, ("N", 4)))


@pytest.fixture
def region() -> Iterator[HandedRegion]:
    opened = open_memory(memfd(PAGE), "me")
    yield opened
    opened.close()


def network(*, may_change: bool, outputs: tuple[Port, ...] = OUTPUTS) -> Any:
    return SimpleNamespace(inputs_may_change=may_change, outputs=outputs)


def placed(outputs: Mapping[str, tuple[int, int]] = NOWHERE, at: int = 0) -> Placed:
    """A request that the server knows already: "x" at an offset, outputs at an offset with room."""
    message = pb.InferRequest(network="n", id="a")
    tensor = message.inputs.add(name="x").tensor
    tensor.dtype = pb.FLOAT
    tensor.shape.extend(SHAPE)
    tensor.shared_memory.CopyFrom(pb.SharedMemory(region="r", offset=at, bytes=SIZE))
    for name, (start, room) in outputs.items():
        message.output_regions[name].CopyFrom(pb.SharedMemory(region="r", offset=start, bytes=room))
    layouts, data = RequestLayouts(), message.SerializeToString()
    for _ in range(2):
        layouts.learn_in_region(data, message)
    found = layouts.read(data)
    assert isinstance(found, InRegion)
    return found.placed


def write(region: HandedRegion, value: float, at: int = 0) -> None:
    region.write(at, np.full(SHAPE, value, np.float32).reshape(-1).view(np.uint8), "")


def test_a_network_that_goes_by_values_reads_what_nobody_changes(region: HandedRegion) -> None:
    write(region, 1)
    inputs, room = tensors(placed({"y": (64, 64)}), region, network(may_change=False))
    write(region, 2)
    np.testing.assert_array_equal(inputs["x"], np.ones(SHAPE, np.float32))
    assert room is None  # it may read an output again


def test_another_network_reads_and_writes_in_place(region: HandedRegion) -> None:
    inputs, room = tensors(placed({"y": (64, 64)}), region, network(may_change=True))
    write(region, 2)
    np.testing.assert_array_equal(inputs["x"], np.full(SHAPE, 2, np.float32))
    x = inputs["x"]
    assert isinstance(x, np.ndarray)
    assert not x.flags.writeable
    assert room is not None
    room["y"][...] = 3
    np.testing.assert_array_equal(region.read(64, SIZE, "").view(np.float32), np.full(16, 3))


@pytest.mark.parametrize(
    ("outputs", "with_room"),
    [
        ({"y": (64, 64)}, {"y"}),
        ({"y": (64, 200)}, {"y"}),
        ({"y": (64, 60)}, set()),  # too small: the request fails, and nothing is written
        ({"y": (0, 64)}, set()),  # on the input, which it would overwrite during the run
        ({"y": (96, 64)}, set()),  # not aligned
        ({"z": (64, 64)}, set()),  # its size varies
        ({"none": (64, 64)}, set()),
        ({"y": (128, 64), "z": (64, 64)}, {"y"}),
    ],
)
def test_an_output_gets_room_if_it_certainly_fits(
    region: HandedRegion, outputs: dict[str, tuple[int, int]], with_room: set[str]
) -> None:
    _, room = tensors(placed(outputs), region, network(may_change=True))
    assert room is not None
    assert room.keys() == with_room


def test_two_outputs_do_not_share_their_room(region: HandedRegion) -> None:
    both = (OUTPUTS[0], Port("z", ir.DataType.FLOAT, SHAPE))
    found = placed({"y": (64, 64), "z": (64, 64)})
    _, room = tensors(found, region, network(may_change=True, outputs=both))
    assert room is not None
    assert len(room) == 1


def test_an_input_that_is_not_aligned_is_copied_each_time(region: HandedRegion) -> None:
    request, wanted = placed(at=4), network(may_change=True)
    for value in (1, 2):
        write(region, value, at=4)
        inputs, _ = tensors(request, region, wanted)
        write(region, 0, at=4)
        np.testing.assert_array_equal(inputs["x"], np.full(SHAPE, value, np.float32))


def test_memory_for_reading_gives_no_room() -> None:
    sealed = memfd(PAGE, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    region = open_memory(sealed, "me")
    inputs, room = tensors(placed({"y": (64, 64)}), region, network(may_change=True))
    assert inputs.keys() == {"x"}
    assert room == {}
    del inputs
    region.close()


def test_a_network_of_the_same_name_gets_room_for_its_own_outputs(region: HandedRegion) -> None:
    request = placed({"y": (64, 128)})
    other = (Port("y", ir.DataType.DOUBLE, SHAPE),)
    for outputs, dtype in ((OUTPUTS, np.float32), (other, np.float64), (OUTPUTS, np.float32)):
        _, room = tensors(request, region, network(may_change=True, outputs=outputs))
        assert room is not None
        assert room["y"].dtype == dtype


def test_what_a_region_keeps_is_bounded(region: HandedRegion) -> None:
    requests = [placed({"y": (64, 64 + extra)}) for extra in range(_MAX_VIEWS + 1)]
    for each in requests:
        tensors(each, region, network(may_change=True))
    assert len(region.views) == 1
