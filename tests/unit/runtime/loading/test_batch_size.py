"""Which networks take batches."""

from __future__ import annotations

import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.loading.batch_size import check_batch_size, with_batch
from headrace.runtime.transform.options import LoadRequest, Presentation
from headrace.testing.case import network_of

KEEPS = """m (float[n,2] x, float[2] h) => (float[n,2] y, float[2] hn) {
    y = Add(x, h)
    hn = Identity(h)
}"""


ONE_ROW = "m (float[1,2] x) => (float[1,2] y) { y = Relu(x) }"


def request(most: int, device: str = "CPU", **config: str) -> LoadRequest:
    presentation = Presentation(max_batch_size=most)
    return LoadRequest("m", DeviceName.parse(device), config, presentation=presentation)


def check(text: str, most: int = 4, **config: str) -> None:
    check_batch_size(network_of(text), request(most, **config))


def test_a_first_dimension_of_any_size_is_a_batch() -> None:
    check("m (float[n,2] x, float[n] z) => (float[n,2] y) { y = Identity(x) }")
    check("m (float[?,2] x) => (float[?,2] y) { y = Identity(x) }")
    check("m (float[] x) => (float[] y) { y = Identity(x) }")
    check("m (float[2] x) => (float[2] y) { y = Identity(x) }", most=0)


@pytest.mark.parametrize(
    ("inputs", "outputs", "culprit"),
    [
        ("float[2,n] x", "float[2,n] y", "input 'x'"),
        ("float[1,2] x", "float[n,2] y", "input 'x'"),
        ("float[n] x", "float[3] y", "output 'y'"),
    ],
)
def test_what_has_no_such_dimension_is_named(inputs: str, outputs: str, culprit: str) -> None:
    with pytest.raises(InvalidArgument, match=culprit) as caught:
        check(f"m ({inputs}) => ({outputs}) {{ y = Identity(x) }}")
    assert caught.value.field == "max_batch_size"
    assert "give 0" in caught.value.message


def test_states_are_not_the_client_s() -> None:
    check(KEEPS, STATES="h=hn")
    with pytest.raises(InvalidArgument, match="input 'h'"):
        check(KEEPS)
    with pytest.raises(InvalidArgument, match="input 'h'"):
        check(KEEPS, STATES="h=hn=h")


@pytest.mark.parametrize("device", ["BATCH:CPU(4)", "MULTI:[BATCH:CPU(4)],CPU"])
def test_one_row_becomes_any_number_for_batch_if_the_author_says_so(device: str) -> None:
    given, asked = network_of(ONE_ROW), request(4, device)
    check_batch_size(given, asked)
    made = with_batch(given, asked)
    (x,), (y,) = made.inputs, made.outputs
    assert (x.shape, y.shape) == (("batch", 2), ("batch", 2))
    assert given.inputs[0].shape == (1, 2)


@pytest.mark.parametrize(("most", "device"), [(0, "BATCH:CPU(4)"), (4, "CPU")])
def test_one_row_stays_one_otherwise(most: int, device: str) -> None:
    given = network_of(ONE_ROW)
    assert with_batch(given, request(most, device)) is given
