"""Values of the ``config.json`` of OpenVINO Model Server, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.runtime.errors import InvalidArgument, NotFound

_MOST: Final = 10_000
REFUSED: Final = {
    "mean": "write it for the input in network.toml",
    "scale": "write it for the input in network.toml",
    "precision": "write dtype for the input in network.toml",
    "color_format": "give colours in the model's order",
    "low_latency_transformation": "write [states] in network.toml",
    "max_sequence_number": "write SEQUENCE_CAPACITY in network.toml",
    "idle_sequence_cleanup": "write SEQUENCE_IDLE_TIMEOUT in network.toml",
    "custom_loader_options": "only files are loaded",
    "library_name": "there are no custom nodes; put what it computes into an ONNX model",
    "params": "there are no custom nodes; put what it computes into an ONNX model",
}
"""Keys of OpenVINO Model Server that have no meaning here, and what to do."""


def list_at(facts: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """The list under a key; empty if there is none. Raises InvalidArgument."""
    said = facts.get(key, [])
    if not isinstance(said, list):
        raise wrong(f"{key} must be a list", where)
    return said


def text_at(facts: Mapping[str, Any], key: str, where: str) -> str:
    """The text under a key. Raises InvalidArgument if there is none."""
    text = facts.get(key)
    if not isinstance(text, str) or not text:
        raise wrong(f"{key} must be text", where)
    return text


def whole_at(
    facts: Mapping[str, Any], key: str, default: int | None, where: str, *, least: int = 0
) -> Any:
    """The whole number under a key, from `least` on, or the default. Raises InvalidArgument."""
    number = facts.get(key, default)
    if number is not default and (type(number) is not int or not least <= number <= _MOST):
        message = f"{key} must be a whole number from {least} to {_MOST}"
        raise wrong(message, where)
    return number


def check_keys(facts: Any, known: frozenset[str], where: str) -> None:
    """Checks that an object has no key but those that are known. Raises InvalidArgument,
    NotFound."""
    if not isinstance(facts, dict):
        raise wrong("must be an object", where)
    for key in facts:
        if key in known:
            continue
        if key in REFUSED:
            raise wrong(f"{key} has no meaning here; {REFUSED[key]}", where)
        raise NotFound.unknown("key", key[:200], known, field=where)


def wrong(message: str, where: str) -> InvalidArgument:
    """The error for a value that is wrong at this place of the file."""
    return InvalidArgument(message, field=where)
