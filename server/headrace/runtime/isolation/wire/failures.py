"""Converts errors to JSON and back, so that the server raises what the worker raised."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from headrace.runtime import errors
from headrace.runtime.errors import (
    HeadraceError,
    Internal,
    NotLoaded,
    QueueFull,
    UnsupportedLayer,
    UnsupportedLayers,
    exhausted,
)

_log = logging.getLogger(__name__)

_PLAIN: Final = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type)
    and issubclass(value, HeadraceError)
    and value not in (HeadraceError, NotLoaded, QueueFull, UnsupportedLayers)
}
"""The classes that take a message as their only positional argument. A worker knows of no network
that is not loaded, so that NotLoaded is the server's alone."""


def error_to_json(error: BaseException) -> dict[str, Any]:
    """The facts from which the other process makes the error again. An error that is not a
    HeadraceError is a bug, and is logged here, in the process where it happened."""
    error = exhausted(error) or error
    if not isinstance(error, HeadraceError):
        _log.error("a device's plugin failed", exc_info=error)
        error = Internal(f"{type(error).__name__}: {error}")
    facts: dict[str, Any] = {
        "type": type(error).__name__,
        "message": error.message,
        "field": error.field,
        "metadata": error.metadata,
        "delay": error.retry_delay_seconds,
    }
    if isinstance(error, UnsupportedLayers):
        facts["device"] = error.metadata.get("device", "")
        facts["layers"] = [list(layer) for layer in error.layers]
    return facts


def error_from_json(facts: Mapping[str, Any]) -> HeadraceError:
    """The error; Internal if only the worker knows its class."""
    kind, message = str(facts.get("type")), str(facts.get("message"))
    field, delay = facts.get("field"), facts.get("delay")
    if kind == UnsupportedLayers.__name__:
        layers = [UnsupportedLayer(*map(str, layer)) for layer in facts.get("layers", ())]
        return UnsupportedLayers(str(facts.get("device")), layers)
    if kind == QueueFull.__name__:
        return QueueFull(message, retry_delay_seconds=float(delay or 0.0))
    error = _PLAIN.get(kind, Internal)(
        message, field=None if field is None else str(field), metadata=facts.get("metadata")
    )
    if delay is not None:
        error.retry_delay_seconds = float(delay)
    return error
