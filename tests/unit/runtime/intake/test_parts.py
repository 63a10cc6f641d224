"""Serialised messages, parsed a part at a time."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from headrace.protobuf.fields import header
from headrace.runtime.intake import parts
from tests.support.model_zoo import branches, image_network
from tests.support.scrambled import scrambled


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 32)


def numbers() -> onnx.ModelProto:
    """A model whose tensors and attributes hold numbers of every kind, and types of every kind."""
    count = 100
    kinds = {
        TensorProto.FLOAT: np.linspace(-1, 1, count).tolist(),
        TensorProto.DOUBLE: np.linspace(-1, 1, count).tolist(),
        TensorProto.INT32: range(-50, 50),
        TensorProto.INT64: [3**at % 2**62 - 2**40 for at in range(count)],
        TensorProto.UINT64: [2**63 + at for at in range(count)],
        TensorProto.STRING: [b"text" * at for at in range(count)],
    }
    tensors = [helper.make_tensor(f"t{kind}", kind, [count], kinds[kind]) for kind in kinds]
    node = helper.make_node("Op", ["a" * 40] * 9, ["b"], ints=range(-50, 50), text="long" * 40)
    sequence = helper.make_sequence_type_proto(
        helper.make_tensor_type_proto(TensorProto.FLOAT, [f"size {at}" for at in range(30)])
    )
    ports = [helper.make_value_info(name, sequence) for name in "ab"]
    graph = helper.make_graph([node], "numbers", ports[:1], ports[1:], tensors)
    return helper.make_model(graph)


def parsed(data: bytes) -> onnx.ModelProto:
    message = onnx.ModelProto()
    parts.merge(message, data)
    return message


@pytest.mark.parametrize("model", [numbers(), branches(), image_network()], ids=str.__name__)
def test_a_model_is_the_same_parsed_in_parts_and_whole(model: onnx.ModelProto) -> None:
    assert parsed(model.SerializeToString()) == model


@pytest.mark.parametrize("seed", range(20))
def test_a_model_whose_fields_come_twice_and_in_any_order_is_the_same(seed: int) -> None:
    data = scrambled(numbers(), random.Random(seed))
    assert parsed(data) == onnx.ModelProto.FromString(data)


def test_a_type_that_comes_after_another_replaces_it() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, ["size" * 20])
    sequence = helper.make_sequence_type_proto(tensor)
    data = b"".join(each.SerializeToString() for each in (tensor, sequence))
    message = onnx.TypeProto()
    parts.merge(message, data)
    assert message == onnx.TypeProto.FromString(data)
    assert not message.HasField("tensor_type")


def test_what_protobuf_refuses_is_refused_in_parts() -> None:
    data = numbers().SerializeToString()
    shuffle = random.Random(1)
    for _ in range(300):
        broken = bytearray(data[: shuffle.randrange(1, len(data))])
        broken[shuffle.randrange(len(broken))] = shuffle.randrange(256)
        with suppress(DecodeError):
            whole = onnx.ModelProto.FromString(bytes(broken))
            with suppress(DecodeError):  # a group, which ONNX has not
                assert parsed(bytes(broken)).SerializeToString() == whole.SerializeToString()
            continue
        with pytest.raises(DecodeError):
            parsed(bytes(broken))


def test_messages_that_are_nested_without_end_are_refused() -> None:
    data = b""
    for _ in range(5000):
        data = header(1, len(data)) + data
        data = header(4, len(data)) + data
    with pytest.raises(DecodeError):
        parts.merge(onnx.TypeProto(), data)
