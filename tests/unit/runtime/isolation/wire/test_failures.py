"""An error that a worker raised is raised again in the server."""

from __future__ import annotations

import inspect
import json

import pytest

from headrace.runtime import errors
from headrace.runtime.errors import (
    HeadraceError,
    Internal,
    InvalidArgument,
    NotLoaded,
    QueueFull,
    UnsupportedLayer,
    UnsupportedLayers,
)
from headrace.runtime.isolation.wire.failures import error_from_json, error_to_json

_OTHERS = (HeadraceError, NotLoaded, QueueFull, UnsupportedLayers)
_CLASSES = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, HeadraceError) and each not in _OTHERS
]


def through(error: BaseException) -> HeadraceError:
    return error_from_json(json.loads(json.dumps(error_to_json(error))))


@pytest.mark.parametrize("kind", _CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_keeps_its_class_and_what_it_says(kind: type[HeadraceError]) -> None:
    error = kind("wrong, do this", field="inputs['x']", metadata={"key": "value"})
    error.retry_delay_seconds = 1.5
    received = through(error)
    assert type(received) is kind
    assert (received.message, received.field) == ("wrong, do this", "inputs['x']")
    assert received.metadata == {"key": "value"}
    assert received.retry_delay_seconds == 1.5


def test_unsupported_layers_keep_their_layers() -> None:
    layers = [UnsupportedLayer("a", "Add", "why", "CPU"), UnsupportedLayer("b", "Mul", "so", "")]
    received = through(UnsupportedLayers("CPU", layers))
    assert isinstance(received, UnsupportedLayers)
    assert received.layers == tuple(layers)
    assert received.message == UnsupportedLayers("CPU", layers).message


def test_a_full_queue_keeps_its_delay() -> None:
    received = through(QueueFull("full", retry_delay_seconds=0.25))
    assert type(received) is QueueFull
    assert received.retry_delay_seconds == 0.25


def test_a_bug_becomes_internal_and_is_logged_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    received = through(ZeroDivisionError("division by zero"))
    assert type(received) is Internal
    assert received.message == "ZeroDivisionError: division by zero"
    assert "a device's plugin failed" in caplog.text


def test_a_class_that_only_the_worker_knows_becomes_internal() -> None:
    class Strange(InvalidArgument):
        pass

    assert type(through(Strange("odd"))) is Internal


def test_what_is_no_error_becomes_one() -> None:
    assert type(error_from_json({})) is Internal


def test_a_worker_cannot_say_that_a_network_is_not_loaded() -> None:
    assert type(error_from_json({"type": "NotLoaded", "message": "not yet"})) is Internal
