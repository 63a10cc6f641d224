"""Messages of the same form as an earlier one say the same as messages that are described anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.runtime.isolation.wire.channel import Disconnected, packed
from headrace.runtime.isolation.wire.forms import Form, Forms, key_of
from headrace.runtime.isolation.wire.lane import Lane, lanes
from headrace.runtime.isolation.wire.values import INLINE_BYTES, encode

_FACTS = bytes(range(16))


def described(values: dict[str, Any]) -> bytes:
    encoded = encode(values)
    return packed({"inputs": encoded.description}, (_FACTS, *encoded.body), 0)


def learnt(forms: Forms, values: dict[str, Any]) -> None:
    forms.learn(key_of(values), _FACTS, encode(values), described(values))


PLAIN: dict[str, dict[str, Any]] = {
    "one": {"x": np.arange(16, dtype=np.float32)},
    "odd sizes": {"x": np.ones(3, np.int8), "y": np.ones((1, 5), np.bool_), "z": np.ones(())},
    "empty": {"x": np.ones((2, 0, 3), np.int64)},
    "strided": {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4).T},
    "none": {},
}


@pytest.mark.parametrize("values", PLAIN.values(), ids=list(PLAIN))
def test_a_form_that_is_known_gives_the_same_message(values: dict[str, Any]) -> None:
    forms, key = Forms(), key_of(values, "more")
    assert forms.message(key, _FACTS, values) is None
    forms.learn(key, _FACTS, encode(values), described(values))
    others = {name: value + value for name, value in values.items()}
    assert forms.message(key_of(others, "more"), _FACTS, others) == described(others)
    assert forms.message(key_of(others, "other"), _FACTS, others) is None


@pytest.mark.parametrize(
    "values",
    [
        {"x": None},
        {"x": [np.ones(3)]},
        {"x": np.array(["text"], object)},
        {"x": np.ones(INLINE_BYTES + 1, np.uint8)},
        {"n" * 4000: np.ones(3)},
    ],
    ids=["absent", "sequence", "strings", "large", "long header"],
)
def test_other_values_are_described_each_time(values: dict[str, Any]) -> None:
    forms = Forms()
    learnt(forms, values)
    assert forms.message(key_of(values), _FACTS, values) is None


def test_a_client_that_changes_its_shapes_takes_no_memory() -> None:
    forms = Forms()
    for size in range(100):
        learnt(forms, {"x": np.ones(size, np.float32)})
    assert len(forms._known) <= 16


@pytest.mark.parametrize("writable", [True, False])
def test_a_header_is_read_once_and_each_message_has_its_own_values(writable: bool) -> None:
    ours, theirs = lanes()
    other, read = Lane(theirs), []
    for number in range(3):
        ours.gather(described({"x": np.full(4, number, np.float32), "y": np.ones((1, 0), bool)}))
        ours.flush()
        message = other.receive()
        form = Form.within(message.header, "inputs")
        assert form.plain
        read.append((form, form.read(message.body[len(_FACTS) :], writable=writable)))
    assert len({id(form) for form, _ in read}) == 1
    for number, (_, values) in enumerate(read):
        x: Any = values["x"]
        y: Any = values["y"]
        assert x.tolist() == [number] * 4
        assert (y.shape, y.dtype) == ((1, 0), np.dtype(bool))
        assert x.flags.writeable is writable
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
        [1, [1.5], 0, 0, 4],
        [999, [1], 0, 0, 4],
        [1, "abc", 0, 0, 4],
        [1, [1], 1, 0, 4],
    ],
    ids=str,
)
def test_a_form_that_leads_astray_is_refused(description: Any) -> None:
    form = Form.within({"inputs": {"x": description}}, "inputs")
    with pytest.raises(Disconnected):
        form.read(memoryview(bytearray(8)), writable=False)


@pytest.mark.parametrize("header", [{}, {"inputs": [1]}, {"inputs": "x"}], ids=str)
def test_a_message_without_values_makes_no_sense(header: dict[str, Any]) -> None:
    with pytest.raises(Disconnected, match="no inputs"):
        Form.within(header, "inputs")
