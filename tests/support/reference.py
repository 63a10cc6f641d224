"""The reference of the client, from its signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

from headrace import client

CLASSES = (
    "Client",
    "Network",
    "InferRequest",
    "InferMany",
    "Session",
    "Outputs",
    "InferenceSession",
)
"""What a program calls methods of."""
VALUES = (
    "NetworkInfo",
    "Port",
    "QueryResult",
    "UnsupportedLayer",
    "Subgraph",
    "Device",
    "RepositoryVersion",
    "LayerProfile",
    "Timings",
    "Range",
    "InputOptions",
    "OutputOptions",
    "ErrorDetails",
)
"""What methods take and return."""
MADE_BY_METHODS = {"InferRequest", "InferMany", "Session", "Network", "Outputs"}
INSIDE = {
    "check_open",
    "do",
    "doubts",
    "encode",
    "failed",
    "inherit",
    "look_up",
    "pack",
    "place",
    "probe",
    "renew",
    "run",
    "run_in_background",
}
"""Methods for the client's own modules."""


def reference() -> str:
    """The text between the markers of the page."""
    return "\n".join((*map(_class, CLASSES), "## Values\n", *map(_value, VALUES)))


def _class(name: str) -> str:
    kind = getattr(client, name)
    parts = [f"## {name}\n"]
    if name not in MADE_BY_METHODS:
        parts.append(_signature(name, kind))
        parts.append(_prose(kind))
    else:  # how it is made is no concern of a reader
        parts.append(re.sub(r"Arguments:\n\n(?:[- ] .*\n)+", "", _prose(kind)).rstrip() + "\n")
    parts += [
        f"### {name}.{method}\n\n{_signature(method, function)}\n{_prose(function)}"
        for method, function in _methods(kind)
    ]
    return "\n".join(parts)


def _methods(kind: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    members: dict[str, Any] = {}
    for base in kind.__mro__[:-1]:  # what both clients share stands in one
        members = {**members, **{n: each for n, each in vars(base).items() if n not in members}}
    for name, function in members.items():
        if not inspect.isfunction(function) or name.startswith("_") or name in INSIDE:
            continue
        if not (inspect.getdoc(function) or "").startswith("Raises NotImplementedError"):
            yield name, function


def _signature(name: str, function: Any) -> str:
    """A block of code with the names of the arguments and their defaults, without types."""
    signature = inspect.signature(function)
    arguments = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    plain = signature.replace(parameters=arguments, return_annotation=inspect.Signature.empty)
    written = f"{name}{plain}"
    if len(written) > 100:
        inside = str(plain)[1:-1].split(", ")
        written = f"{name}(\n    " + ",\n    ".join(inside) + ",\n)"
    return f"```text\n{written}\n```\n"


def _value(name: str) -> str:
    kind = getattr(client, name)
    shown = f"### {name}\n\n{_prose(kind)}"
    if typing.is_typeddict(kind):
        return shown
    fields = ", ".join(f"`{each}`" for each in inspect.signature(kind).parameters)
    return f"{shown}\nFields: {fields}.\n"


_TITLES = {"Args:": "Arguments:", "Raises:": "Raises:", "Attributes:": "Attributes:"}


def _prose(of: Any) -> str:
    """A docstring as Markdown: its sections become lists."""
    lines: list[str] = []
    in_list = False
    for line in (inspect.getdoc(of) or "").replace("``", "`").splitlines():
        if line in (*_TITLES, "Returns:"):
            in_list = line != "Returns:"
            lines += [_TITLES.get(line, line), ""]
        elif in_list and (entry := re.fullmatch(r"    (\w[\w, ]*): (.*)", line)):
            names = ", ".join(f"`{each}`" for each in entry[1].split(", "))
            lines.append(f"- {names}: {entry[2]}")
        elif in_list and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            in_list = in_list and bool(line)
            lines.append(line.strip())
    return "\n".join(lines).strip() + "\n"
