"""Checks Python and the packages that headrace needs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Final

from packaging.requirements import Requirement

from headrace.server.doctor.finding import Finding, ok, problem, warning

_NEEDED: Final = ("", "cli", "http", "server")
_DEVICES: Final = ("openvino", "opencl", "cuda")
_NEWEST = (3, 14)


def check_python() -> Iterator[Finding]:
    shown = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] > _NEWEST:
        yield warning(
            "python", f"headrace was not tried with Python {shown}", "use Python 3.11 to 3.14"
        )
    else:
        yield ok("python", f"Python {shown}")


def check_packages() -> Iterator[Finding]:
    """Compares the installed versions with the ranges of headrace's own metadata."""
    wanted = [Requirement(text) for text in metadata.requires("headrace") or ()]
    good = 0
    for name in (*_NEEDED, *_DEVICES):
        own = list(_of_extra(wanted, name))
        missing = any(_version(requirement.name) is None for requirement in own)
        if missing and name in _DEVICES:  # nobody wants the device
            continue
        for requirement in own:
            finding = _compared(requirement, name)
            if finding is None:
                good += 1
            else:
                yield finding
    yield ok("packages", f"{good} packages have versions that headrace supports")


def _of_extra(wanted: Iterable[Requirement], extra: str) -> Iterator[Requirement]:
    """The requirements of one extra alone. "" stands for those that every installation has."""
    for requirement in wanted:
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if requirement.name != "headrace" and applies and (not extra or not always):
            yield requirement


def _compared(wanted: Requirement, extra: str) -> Finding | None:
    version = _version(wanted.name)
    remedy = f"run: pip install 'headrace{f'[{extra}]' if extra else ''}'"
    if version is None:
        return problem("packages", f"{wanted.name} is not installed", remedy)
    if not wanted.specifier.contains(version, prereleases=True):
        message = f"{wanted.name} {version} is not supported: it must be {wanted.specifier}"
        return problem("packages", message, remedy)
    return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
