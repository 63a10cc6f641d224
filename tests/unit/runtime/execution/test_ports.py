"""What a network takes: each fault is named by field, and the message says what was expected."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.ports import PortCheck
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Value

X = Port("x", ir.DataType.FLOAT, ("n", 4))
Y = Port("y", ir.DataType.FLOAT, ("n", 4))
Z = Port("z", ir.DataType.INT64, None)


def job(inputs: dict[str, Any], *outputs: str) -> Job:
    return Job(inputs, lambda _: None, output_names=outputs)


def floats(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros(shape, np.float32)


def check(port: Port, value: Any) -> None:
    PortCheck([port], [Y])(job({port.name: value}))


def refusal(port: Port, value: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        check(port, value)
    return caught.value


@pytest.mark.parametrize(
    ("port", "value"),
    [
        (X, floats(1, 4)),
        (X, floats(0, 4)),
        (X, floats(3, 4)),
        (Port("x", ir.DataType.FLOAT, None), floats(2, 3, 4)),
        (Port("x", ir.DataType.FLOAT, ()), floats()),
        (Port("x", ir.DataType.FLOAT, (None, 2)), floats(7, 2)),
        (Port("x", ir.DataType.BFLOAT16, (1,)), np.zeros(1, ml_dtypes.bfloat16)),
        (Port("x", ir.DataType.STRING, (1,)), np.array(["text"], object)),
        (Port("x", ir.DataType.FLOAT, (2,), optional=True), None),
        (Port("x", ir.DataType.FLOAT, (2,), kind="sequence"), []),
        (Port("x", ir.DataType.FLOAT, ("n",), kind="sequence"), [floats(1), floats(3)]),
        (Port("x", ir.DataType.FLOAT, None, kind="sequence", optional=True), None),
    ],
)
def test_what_fits_is_taken(port: Port, value: Value) -> None:
    check(port, value)


@pytest.mark.parametrize(
    ("port", "value", "field", "message"),
    [
        (X, floats(4), ".shape", r"takes float32\[n, 4\], not shape \[4\]"),
        (X, floats(1, 4, 1), ".shape", r"not shape \[1, 4, 1\]"),
        (X, floats(1, 5), ".shape", r"not shape \[1, 5\]"),
        (X, np.zeros((1, 4)), ".dtype", r"takes float32\[n, 4\], not float64; convert it first"),
        (X, np.zeros((1, 4)), ".dtype", r"first, or set its dtype when the network is loaded$"),
        (X, np.zeros((1, 4), np.complex64), ".dtype", r"not complex64; convert it first$"),
        (X, np.array([["a"]], object), ".dtype", r"not string; convert it first$"),
        (X, np.zeros((1, 4), ">f4"), ".dtype", "not"),
        (X, np.array([["a"] * 4], object), ".dtype", "not string"),
        (X, None, "", r"must be given: it is float32\[n, 4\]"),
        (X, [floats(1, 4)], "", "not a sequence"),
        (X, 1.5, "", "not float"),
        (X, "text", "", "not str"),
        (Port("x", ir.DataType.FLOAT, (None,)), floats(), ".shape", r"takes float32\[\?\]"),
        (Port("x", ir.DataType.FLOAT, (2,), optional=True), floats(3), ".shape", "takes optional"),
        (Port("x", ir.DataType.FLOAT, None, kind="sequence"), floats(1), "", "not a tensor"),
        (Port("x", ir.DataType.FLOAT, None, kind="sequence"), 3, "", "not int"),
        (Port("x", ir.DataType.FLOAT, None, kind="sequence"), None, "", "must be given"),
        (
            Port("x", ir.DataType.FLOAT, None, kind="sequence"),
            [floats(1), np.zeros(1)],
            "[1].dtype",
            "element 1 of input 'x' takes sequence of float32, not float64",
        ),
        (
            Port("x", ir.DataType.FLOAT, (2,), kind="sequence"),
            [floats(2), floats(2), floats(3)],
            "[2].shape",
            r"element 2 of input 'x' .* not shape \[3\]",
        ),
        (
            Port("x", ir.DataType.FLOAT, None, kind="sequence"),
            [None],
            "[0]",
            "element 0 of input 'x' .* not NoneType",
        ),
        (
            Port("x", ir.DataType.FLOAT, None, kind="sequence"),
            [[floats(1)]],
            "[0]",
            "element 0 of input 'x' .* not a sequence",
        ),
    ],
)
def test_what_does_not_fit_is_refused_naming_the_field(
    port: Port, value: Any, field: str, message: str
) -> None:
    error = refusal(port, value)
    assert error.field == f"inputs['x']{field}"
    with pytest.raises(InvalidArgument, match=message):
        raise error


def test_an_input_that_the_network_does_not_have_is_refused_with_a_suggestion() -> None:
    check = PortCheck([Port("image", ir.DataType.FLOAT, None)], [Y])
    with pytest.raises(InvalidArgument, match="no input 'imgae'; did you mean 'image'") as caught:
        check(job({"imgae": floats(1)}))
    assert caught.value.field == "inputs['imgae']"


def test_a_missing_input_is_named_unless_it_is_optional() -> None:
    check = PortCheck([X, Port("mask", ir.DataType.BOOL, None, optional=True)], [Y])
    check(job({"x": floats(1, 4)}))
    with pytest.raises(InvalidArgument, match=r"input 'x' is missing: float32\[n, 4\]") as caught:
        check(job({}))
    assert caught.value.field == "inputs['x']"


def test_a_job_that_names_no_outputs_gets_all_in_order() -> None:
    request = job({"x": floats(1, 4)})
    PortCheck([X], [Z, Y])(request)
    assert request.output_names == ("z", "y")


def test_a_job_gets_the_outputs_that_it_names() -> None:
    request = job({"x": floats(1, 4)}, "y")
    PortCheck([X], [Z, Y])(request)
    assert request.output_names == ("y",)


@pytest.mark.parametrize(
    ("names", "message"),
    [(("yy",), "no output 'yy'; did you mean 'y'"), (("y", "y"), "named twice")],
)
def test_outputs_that_cannot_be_given_are_refused(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        PortCheck([X], [Y, Z])(job({"x": floats(1, 4)}, *names))
    assert caught.value.field is not None
    assert caught.value.field.startswith("outputs")


@pytest.mark.parametrize(
    ("port", "value", "size"),
    [
        (X, floats(5, 4), 5),
        (X, floats(0, 4), 0),
        (Port("x", ir.DataType.FLOAT, (None,)), floats(3), 3),
        (Port("x", ir.DataType.FLOAT, (7,)), floats(7), 1),
        (Port("x", ir.DataType.FLOAT, None), floats(7), 1),
        (Port("x", ir.DataType.FLOAT, ("n",), kind="sequence"), [floats(7)], 1),
        (Port("x", ir.DataType.FLOAT, ("n",), optional=True), None, 1),
    ],
)
def test_the_batch_size_is_that_of_the_first_dimension_left_open(
    port: Port, value: Any, size: int
) -> None:
    assert PortCheck([port], [Y]).batch_size(job({"x": value})) == size
