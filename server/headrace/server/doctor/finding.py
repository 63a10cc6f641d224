"""What a check finds."""

from __future__ import annotations

import enum
from typing import NamedTuple

from headrace.server.settings.option import GIB, MIB


class State(enum.StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """The server starts, but something may surprise you."""
    PROBLEM = "problem"
    """The server does not start, or does not do what the settings ask for."""


class Finding(NamedTuple):
    """One line.

    Attributes:
        subject: what was checked, in one word.
        message: what is so.
        remedy: what to do about it. "" if nothing has to be done.
    """

    state: State
    subject: str
    message: str
    remedy: str = ""


def ok(subject: str, message: str) -> Finding:
    return Finding(State.OK, subject, message)


def warning(subject: str, message: str, remedy: str) -> Finding:
    return Finding(State.WARNING, subject, message, remedy)


def problem(subject: str, message: str, remedy: str) -> Finding:
    return Finding(State.PROBLEM, subject, message, remedy)


def size_text(size: int) -> str:
    """A number of bytes, as ``1.5 GiB``."""
    for name, unit in (("GiB", GIB), ("MiB", MIB)):
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size} bytes"
