"""Requests whose tensors lie in memory that a client has handed over: what is copied, and when."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.network.network import Port
from headrace.server.services.inference import decode
from headrace.server.serving.call import InferCall
from headrace.server.serving.regions import place_inputs, read_inputs
from headrace.server.shared_memory.handed import HandedRegion, open_memory
from headrace.v1 import inference_engine_pb2 as pb
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


def lease(region: HandedRegion) -> Any:
    async def read(_name: str, offset: int, size: int, field: str) -> Any:
        return region.read(offset, size, field)

    return SimpleNamespace(use=lambda *_: region, read=read)


def call(outputs: Mapping[str, tuple[int, int]] = NOWHERE, at: int = 0) -> InferCall:
    """Asks with "x" at an offset, and for outputs at an offset with room."""
    message = pb.InferRequest(network="n", id="a")
    tensor = message.inputs.add(name="x").tensor
    tensor.dtype = pb.FLOAT
    tensor.shape.extend(SHAPE)
    tensor.shared_memory.CopyFrom(pb.SharedMemory(region="r", offset=at, bytes=SIZE))
    for name, (start, room) in outputs.items():
        message.output_regions[name].CopyFrom(pb.SharedMemory(region="r", offset=start, bytes=room))
    return decode(message, ())


def write(region: HandedRegion, value: float, at: int = 0) -> None:
    region.write(at, np.full(SHAPE, value, np.float32).reshape(-1).view(np.uint8), "")


def read(asked: InferCall, region: HandedRegion) -> Any:
    asyncio.run(read_inputs(asked, lease(region)))
    return asked.inputs["x"]


def test_a_network_that_goes_by_values_reads_what_nobody_changes(region: HandedRegion) -> None:
    write(region, 1)
    asked = call({"y": (64, 64)})
    assert place_inputs(asked, lease(region), network(may_change=False)) is None
    x = read(asked, region)
    write(region, 2)
    np.testing.assert_array_equal(x, np.ones(SHAPE, np.float32))


def test_another_network_reads_and_writes_in_place(region: HandedRegion) -> None:
    asked = call({"y": (64, 64)})
    room = place_inputs(asked, lease(region), network(may_change=True))
    write(region, 2)
    x = asked.inputs["x"]
    assert isinstance(x, np.ndarray)
    np.testing.assert_array_equal(x, np.full(SHAPE, 2, np.float32))
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
    room = place_inputs(call(outputs), lease(region), network(may_change=True))
    assert room is not None
    assert room.keys() == with_room


def test_two_outputs_do_not_share_their_room(region: HandedRegion) -> None:
    both = (OUTPUTS[0], Port("z", ir.DataType.FLOAT, SHAPE))
    asked = call({"y": (64, 64), "z": (64, 64)})
    room = place_inputs(asked, lease(region), network(may_change=True, outputs=both))
    assert room is not None
    assert len(room) == 1


def test_an_input_that_is_not_aligned_is_copied(region: HandedRegion) -> None:
    write(region, 1, at=4)
    asked = call(at=4)
    assert place_inputs(asked, lease(region), network(may_change=True)) is None
    x = read(asked, region)
    write(region, 0, at=4)
    np.testing.assert_array_equal(x, np.ones(SHAPE, np.float32))


def test_memory_for_reading_gives_no_room() -> None:
    sealed = memfd(PAGE, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    region = open_memory(sealed, "me")
    asked = call({"y": (64, 64)})
    assert place_inputs(asked, lease(region), network(may_change=True)) == {}
    asked.inputs.clear()
    region.close()
