"""Types that a layer may take where its inputs' own are not known."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import defs

from headrace.plugins.cpu.claims.type_guesses import MAX_GUESSES, type_guesses
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_names import type_of, type_text
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import parse


def guesses(text: str) -> list[dict[str, str]]:
    """The guesses for the last layer, whose inputs come from an operator that nobody knows."""
    model = parse(f"g (float[2] x) => (float[2] z) {{ {text} }}").SerializeToString()
    network = transform_network(Network.from_bytes(model), common=False)
    *_, node = network.nodes()
    unknown = [value for value in node.inputs if value is not None and value.type is None]
    return [
        {str(value.name): type_text(guess) for value, guess in each.items()}
        for each in type_guesses(node, unknown, 21)
    ]


def test_a_type_that_the_schema_settles_is_the_only_guess() -> None:
    assert guesses("t = headrace.test.Strange(x) z = Sign(t) w = Not(t)")[0] == {
        "t": "tensor(bool)"
    }


def test_what_is_declared_and_cannot_be_counts_for_nothing() -> None:
    assert guesses("t = headrace.test.Strange(x) z = Not(t)") == [{"t": "tensor(bool)"}]


def test_inputs_that_have_to_be_alike_follow_the_one_that_is_known() -> None:
    found = guesses("t, c = headrace.test.Strange(x) z = Where(c, t, x)")
    assert found == [{"c": "tensor(bool)", "t": "tensor(float)"}]


def test_an_output_that_is_declared_settles_an_input() -> None:
    assert guesses("t = headrace.test.Strange(x) z = Neg(t)") == [{"t": "tensor(float)"}]


def test_the_likeliest_types_come_first() -> None:
    found = [each["i"] for each in guesses("i = headrace.test.Strange(x) z = Gather(x, i)")]
    assert found == ["tensor(int64)", "tensor(int32)"]
    assert guesses("t = headrace.test.Strange(x) z = Cast<to = 1>(t)")[0] == {"t": "tensor(float)"}
    assert guesses("t, i = headrace.test.Strange(x) z = SequenceAt(t, i)")[:2] == [
        {"t": "seq(tensor(float))", "i": "tensor(int64)"},
        {"t": "seq(tensor(float))", "i": "tensor(int32)"},
    ]


def test_there_are_only_so_many_guesses() -> None:
    found = guesses("a, b, c = headrace.test.Strange(x) z = ScatterElements(a, b, c)")
    assert 1 < len(found) <= MAX_GUESSES
    free = guesses("a, b = headrace.test.Strange(x) z = DequantizeLinear(a, x, b)")
    assert len(free) <= MAX_GUESSES


def test_an_operator_without_a_schema_may_take_what_its_other_inputs_have() -> None:
    found = guesses("t = headrace.test.Strange(x) z = headrace.test.Stranger(t, x)")
    assert found[:2] == [{"t": "tensor(float)"}, {"t": "tensor(int64)"}]
    assert {"t": "tensor(string)"} in found


@pytest.mark.parametrize(
    "text",
    sorted(
        {
            text
            for schema in defs.get_all_schemas()
            for constraint in schema.type_constraints
            for text in constraint.allowed_type_strs
        }
    ),
)
def test_every_type_of_onnx_reads_back_or_is_not_supported(text: str) -> None:
    found = type_of(text)
    assert (found is None) == ("map(" in text or "sparse" in text)
    if found is not None:
        assert isinstance(found, ir.TypeProtocol)
        assert type_text(found) == text
