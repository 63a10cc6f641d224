"""Prints which of our repairs and refusals a backend no longer needs: `make needed-repairs`.

Its tests compute with a backend alone, and hold as long as that is wrong. `tests/conftest.py` has
their names. They run in no other target.
"""

from __future__ import annotations

import pytest

_right: list[str] = []
"""Tests that found the backend right, by their ids."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.nodeid not in _right:
        _right.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name in _right:
        terminalreporter.write_line(f"may no longer be needed, {name} found no fault")
    if not _right:
        terminalreporter.write_line("every repair that has such a test is still needed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """That a backend got better is no failure."""
    if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
        session.exitstatus = pytest.ExitCode.OK
