"""What a worker prints is in the server's log, line by line."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from headrace.runtime.isolation.server.output_log import OutputLog


@pytest.fixture
def pipe() -> Iterator[tuple[OutputLog, int]]:
    reader, writer = os.pipe()
    log = OutputLog("GPU", reader)
    yield log, writer
    log.close()
    os.close(writer)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_lines_are_logged_whole_with_the_devices_name(
    pipe: tuple[OutputLog, int], caplog: pytest.LogCaptureFixture
) -> None:
    log, writer = pipe
    with caplog.at_level(logging.INFO):
        os.write(writer, b"first\nsec")
        assert log.read()
        os.write(writer, b"ond\n\n\xff\n")
        assert log.read()
    assert lines(caplog) == [(20, "GPU: first"), (20, "GPU: second"), (20, "GPU: \ufffd")]


def test_a_line_that_names_a_level_has_it(
    pipe: tuple[OutputLog, int], caplog: pytest.LogCaptureFixture
) -> None:
    log, writer = pipe
    with caplog.at_level(logging.INFO):
        os.write(writer, b"ERROR driver: lost\nDEBUG not shown\nWARNING hot\n")
        log.read()
    assert lines(caplog) == [(40, "GPU: driver: lost"), (30, "GPU: hot")]


def test_a_line_without_an_end_is_bounded(
    pipe: tuple[OutputLog, int], caplog: pytest.LogCaptureFixture
) -> None:
    log, writer = pipe
    with caplog.at_level(logging.INFO):
        for _ in range(10):
            os.write(writer, b"x" * 10_000)
            log.read()
        os.write(writer, b"\n")
        log.finish()
    assert all(len(text) < 20_000 for _, text in lines(caplog))
    assert len(log._rest) <= 4096


def test_the_last_words_are_logged_though_the_pipe_stays_open(
    pipe: tuple[OutputLog, int], caplog: pytest.LogCaptureFixture
) -> None:
    log, writer = pipe
    with caplog.at_level(logging.INFO):
        os.write(writer, b"a\nFatal error")
        log.finish()
    assert [text for _, text in lines(caplog)] == ["GPU: a", "GPU: Fatal error"]


def test_the_end_is_told() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    log = OutputLog("GPU", reader)
    assert not log.read()
    log.finish()
    log.close()
    log.close()
