"""Which parts of the conformance suite are long: what a device hands on to others, or does in
another process, is asked of these others by `make test`."""

from __future__ import annotations

from typing import Final

import pytest

_SUITE: Final = "headrace.testing.suite."
_REST: Final = {
    "configuration",
    "extensions",
    "input_errors",
    "metrics",
    "preprocessing",
    "profiling",
}
_LONG: Final = {
    "test_auto": {*_REST, "values"},
    "test_batch": {*_REST, "values"},
    "test_isolated_cpu": _REST,
    "test_multi": {*_REST, "values"},
    "test_openvino": _REST,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in _LONG and isinstance(item, pytest.Function):
            part = item.function.__module__.removeprefix(_SUITE)
            if part in _LONG[item.path.stem]:
                item.add_marker("long")
