"""The code that the fuzzer prints for a failure, run as a user would run it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing.backend_cases.cases import BackendCase, collect
from tests.integration.harness import Server
from tools.fuzz.devices.compare import differs
from tools.fuzz.devices.variant import Variant, snippet

pytestmark = pytest.mark.timeout(120)
pytestmark = pytest.mark.long

NAMES = [
    "test_add_bcast",
    "test_cast_FLOAT_to_BFLOAT16",
    "test_cast_FLOAT16_to_FLOAT8E5M2",
    "test_clip_default_inbounds",
    "test_loop11",
    "test_not_2d",
    "test_optional_has_element_empty_optional_input",
    "test_sequence_insert_at_back",
    "test_string_concat",
]


@pytest.fixture(scope="module")
def cases() -> dict[str, BackendCase]:
    return {case.name: case for case in collect(NAMES)}


@pytest.mark.parametrize("name", NAMES)
def test_the_code_runs_and_gives_what_the_reference_does(
    server: Server, cases: dict[str, BackendCase], name: str
) -> None:
    case = cases[name]
    inputs, expected = case.data_sets[0]
    given = Variant("0:0", name, case.operator, case.model, (inputs,))
    code = snippet(given, "CPU").replace("localhost:9000", server.address)
    printed: list[Any] = []
    exec(compile(code, name, "exec"), {"print": printed.append})
    (found,) = printed
    assert differs(dict(found), expected) is None
