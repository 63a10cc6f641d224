"""Which errors a provocation explains."""

from __future__ import annotations

from typing import Any

import pytest

from tools.soak.timeline import SLACK_SECONDS, Rule, Window, bad_lines, unexplained

KILL = Window("killed worker", 100.0, 110.0)
RULES = [Rule("killed worker", "UNAVAILABLE|503", client="own-.*", network="net")]
RIGHT: dict[str, Any] = {
    "at": 105.0, "kind": "unary", "network": "net", "code": "UNAVAILABLE", "text": "it is down",
}  # fmt: skip


def test_an_error_in_the_time_of_its_provocation_is_explained() -> None:
    for at in (100.0, 110.0, 110.0 + SLACK_SECONDS):
        assert unexplained([("own-1", RIGHT | {"at": at})], [KILL], RULES) == []


@pytest.mark.parametrize(
    "change",
    [
        {"at": 99.9},
        {"at": 110.1 + SLACK_SECONDS},
        {"code": "INTERNAL"},
        {"code": "UNAVAILABLE, and more"},
        {"network": "network"},
    ],
    ids=str,
)
def test_any_other_error_is_not(change: dict[str, Any]) -> None:
    (found,) = unexplained([("own-1", RIGHT | change)], [KILL], RULES)
    assert "it is down" in found
    assert found.startswith("own-1: unary of net")


def test_another_client_or_another_provocation_explains_nothing() -> None:
    assert unexplained([("aio-1", RIGHT)], [KILL], RULES) != []
    assert unexplained([("own-1", RIGHT)], [Window("flood", 100.0, 110.0)], RULES) != []
    assert unexplained([("own-1", RIGHT)], [], RULES) != []


def test_a_provocation_without_an_end_still_goes_on() -> None:
    assert unexplained([("own-1", RIGHT)], [Window("killed worker", 100.0)], RULES) == []


def test_lines_of_the_log_are_bad_unless_a_provocation_explains_them() -> None:
    lines = [
        (105.0, "info", "anything"),
        (105.0, "error", "the worker of device X ended"),
        (105.0, "error", "something else"),
        (200.0, "warning", "the worker of device X ended"),
    ]
    assert bad_lines(lines, [KILL], {"killed worker": "worker of device"}) == [
        "error: something else",
        "warning: the worker of device X ended",
    ]
