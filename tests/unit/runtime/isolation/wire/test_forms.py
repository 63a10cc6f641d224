"""Messages of the same form as an earlier one say the same as messages that are described anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.ipc.link import Disconnected, Link, links, packed
from headrace.ipc.segments import Array
from headrace.runtime.isolation.wire.forms import Forms, ValueReader, key_of
from headrace.runtime.isolation.wire.values import INLINE_BYTES, encode

_FACTS = bytes(range(16))
_LARGE = INLINE_BYTES + 64


def described(values: dict[str, Any]) -> bytes:
    encoded = encode(values)
    return packed({"inputs": encoded.description}, (_FACTS, *encoded.body))


def written(forms: Forms, values: dict[str, Any], segment: Array | None = None) -> bytes:
    key = key_of(values)
    writer = forms.known.get(key) if key is not None else None
    if writer is None:
        writer = forms.writer(key, values, "inputs", {})
    return writer.message(_FACTS, values, segment)


PLAIN: dict[str, dict[str, Any]] = {
    "one": {"x": np.arange(16, dtype=np.float32)},
    "odd sizes": {"x": np.ones(3, np.int8), "y": np.ones((1, 5), np.bool_), "z": np.ones(())},
    "empty": {"x": np.ones((2, 0, 3), np.int64)},
    "strided": {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4).T},
    "none": {},
    "large": {"x": np.ones(_LARGE, np.uint8), "y": np.ones(3)},
    "large ones": {"x": np.ones((_LARGE, 2), np.float16).T, "y": np.ones(_LARGE, np.uint8)},
}


@pytest.mark.parametrize("values", PLAIN.values(), ids=list(PLAIN))
def test_a_form_that_is_known_gives_the_same_message(values: dict[str, Any]) -> None:
    forms = Forms()
    for _ in range(3):
        values = {name: value + value for name, value in values.items()}
        encoded = encode(values)
        asked, expected = (np.zeros(encoded.segment_bytes, np.uint8) for _ in range(2))
        encoded.place(expected)
        assert written(forms, values, asked) == described(values)
        np.testing.assert_array_equal(asked, expected)
    writer = forms.known.get(key_of(values) or ())
    assert writer is not None
    assert writer.segment_bytes == encoded.segment_bytes


def test_what_is_in_its_place_already_is_not_copied() -> None:
    forms, segment = Forms(), np.zeros(4 * _LARGE, np.uint8)
    values: dict[str, Any] = {"x": np.ones(_LARGE, np.uint8), "y": np.full(_LARGE, 2, np.uint8)}
    written(forms, values, segment)
    writer = forms.known.get(key_of(values) or ())
    assert writer is not None
    other = np.zeros(4 * _LARGE, np.uint8)
    room = writer.room(other)
    room["x"][:] = 5
    outputs = {"x": room["x"], "y": np.full(_LARGE, 6, np.uint8)}
    message = writer.message(_FACTS, outputs, other, 0, room)
    read: Any = ValueReader(encode(values).description).read(memoryview(message), other)
    assert {name: np.unique(value).tolist() for name, value in read.items()} == {"x": [5], "y": [6]}
    assert all(array.shape == values[name].shape for name, array in room.items())


@pytest.mark.parametrize(
    "values",
    [
        {"x": None},
        {"x": [np.ones(3)]},
        {"x": np.array(["text"], object)},
        {"n" * 4000: np.ones(3)},
    ],
    ids=["absent", "sequence", "strings", "long header"],
)
def test_other_values_are_described_each_time(values: dict[str, Any]) -> None:
    forms = Forms()
    for _ in range(2):
        assert written(forms, values) == described(values)
    assert forms.known == {}


def test_a_client_that_changes_its_shapes_takes_no_memory() -> None:
    forms = Forms()
    for size in range(100):
        written(forms, {"x": np.ones(size, np.float32)})
    assert len(forms.known) <= 16


def test_large_values_are_views_of_the_shared_memory() -> None:
    values: dict[str, Any] = {"x": np.arange(_LARGE, dtype=np.int32), "y": np.ones(3)}
    encoded = encode(values)
    segment = np.zeros(encoded.segment_bytes, np.uint8)
    encoded.place(segment)
    body = memoryview(bytearray(b"".join(encoded.body)))
    read: Any = ValueReader(encoded.description).read(body, segment)
    np.testing.assert_array_equal(read["x"], values["x"])
    assert np.may_share_memory(read["x"], segment)
    assert all(each.flags.writeable for each in read.values())


def test_a_header_is_read_once_and_each_message_has_its_own_values() -> None:
    ours, theirs = links()
    other, read = Link(theirs), []
    for number in range(3):
        ours.send(described({"x": np.full(4, number, np.float32), "y": np.ones((1, 0), bool)}))
        message = other.receive()
        form = ValueReader.within(message.header, "inputs")
        assert form.plain
        read.append((form, form.read(message.body[len(_FACTS) :])))
    assert len({id(form) for form, _ in read}) == 1
    for number, (_, values) in enumerate(read):
        x: Any = values["x"]
        y: Any = values["y"]
        assert x.tolist() == [number] * 4
        assert (y.shape, y.dtype) == ((1, 0), np.dtype(bool))
        assert x.flags.writeable
    ours.close()
    other.close()


@pytest.mark.parametrize(
    "description",
    [
        [1, [4], 0, 0, 16],  # beyond the body
        [1, [1], 0, -4, 4],
        [1, [1], 0, 400, 4],
        [1, [-1], 0, 0, 4],
        [1, [2**62, 2**62], 0, 0, 4],
        [1, [2**70], 0, 0, 4],
        [1, [1], 0, 2**70, 4],
        [1, [1.5], 0, 0, 4],
        [999, [1], 0, 0, 4],
        [1, "abc", 0, 0, 4],
        [1, [1], 1, 0, 4],
        [1, [5], 1, 0, 20],
        [1, [1], 2, 0, 4],
        [1, [1], -1, 0, 4],
    ],
    ids=str,
)
def test_a_form_that_leads_astray_is_refused(description: Any) -> None:
    form = ValueReader.within({"inputs": {"x": description}}, "inputs")
    segment = None if description == [1, [1], 1, 0, 4] else np.zeros(16, np.uint8)
    with pytest.raises(Disconnected):
        form.read(memoryview(bytearray(8)), segment)


@pytest.mark.parametrize("header", [{}, {"inputs": [1]}, {"inputs": "x"}], ids=str)
def test_a_message_without_values_makes_no_sense(header: dict[str, Any]) -> None:
    with pytest.raises(Disconnected, match="no inputs"):
        ValueReader.within(header, "inputs")
