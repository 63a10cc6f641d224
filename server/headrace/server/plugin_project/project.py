"""The files of a plugin project: TEMPLATE's files under another name, and packaging files."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

from headrace.runtime.config.device_name import VIRTUAL_TYPES
from headrace.runtime.errors import AlreadyExists, InvalidArgument

_DEVICE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
_LENGTH = 32
_TEMPLATE = "headrace.plugins.template"
_IMPORT = r"^from headrace[._][^\n(]*(?:\([^)]*\))?\n"
_IMPORTS = re.compile(f"(?:{_IMPORT})+", re.MULTILINE)


def check_device(device: str, taken: Collection[str]) -> None:
    """
    Raises:
        InvalidArgument: `device` cannot be the name of a device, or of a Python package.
        AlreadyExists: a virtual or an installed device has the name.
    """
    if not _DEVICE.fullmatch(device) or len(device) > _LENGTH:
        raise InvalidArgument(
            f"{device!r} is not a name for a device: give up to {_LENGTH} capitals, digits and "
            f"single '_' between them, the first one a capital, as ACME or ACME_NPU",
            field="NAME",
        )
    if device in VIRTUAL_TYPES or device in taken:
        raise AlreadyExists(
            f"there is a device {device}; two plugins cannot share a name", field="NAME"
        )


def project_files(device: str) -> dict[str, str]:
    """The content of each file, by its path in the project.

    Args:
        device: a name that `check_device` accepts.
    """
    package = f"headrace_{device.lower()}"
    names = {
        "device": device,
        "title": "".join(part.capitalize() for part in device.split("_")),
        "package": package,
        "distribution": package.replace("_", "-"),
        "versions": _compatible(version("headrace")),
    }

    def filled(name: str) -> str:
        text = files(__package__).joinpath("files", f"{name}.txt").read_text(encoding="utf-8")
        return Template(text).substitute(names)

    made = {name: filled(name) for name in ("pyproject.toml", "README.md")}
    made["tests/test_conformance.py"] = filled("test_conformance.py")
    for file in files(_TEMPLATE).iterdir():
        if file.is_file():
            code = file.read_text(encoding="utf-8")
            made[f"src/{package}/{file.name}"] = _renamed(code, names)
    return made


def write_project(device: str, folder: Path) -> None:
    """Writes the whole project, or nothing.

    Raises:
        AlreadyExists: something has the folder's name.
        InvalidArgument: the project cannot be made there.
    """
    if folder.exists() or folder.is_symlink():
        raise AlreadyExists(
            f"{folder} exists already; pass another --directory", field="--directory"
        )
    made = project_files(device)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
            draft = Path(temporary) / "project"
            for path, content in made.items():
                (draft / path).parent.mkdir(parents=True, exist_ok=True)
                (draft / path).write_text(content, encoding="utf-8")
            draft.rename(folder)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be made: {error}", field="--directory") from error


def _renamed(code: str, names: dict[str, str]) -> str:
    """TEMPLATE's code under the new names. Imports from its own package come last."""
    code = code.replace(_TEMPLATE, names["package"])
    code = code.replace("Template Device Full Name", names["device"])
    code = code.replace(" Copy it to write your own.", "")
    code = code.replace("Template", names["title"]).replace("TEMPLATE", names["device"])
    return _IMPORTS.sub(lambda block: _sorted_imports(block[0], names["package"]), code)


def _sorted_imports(block: str, package: str) -> str:
    imports = re.findall(_IMPORT, block, re.MULTILINE)
    own = [line for line in imports if line.startswith(f"from {package}.")]
    others = [line for line in imports if line not in own]
    for at, line in enumerate(own):
        source, _, names = line.strip().partition(" import ")
        constants_first = sorted(names.split(", "), key=lambda name: (not name.isupper(), name))
        own[at] = f"{source} import {', '.join(constants_first)}\n"
    return "".join([*others, *(["\n"] if own and others else []), *own])


def _compatible(installed: str) -> str:
    """The requirement for this version and later compatible versions."""
    major, minor = installed.split(".")[:2]
    following = f"0.{int(minor) + 1}" if major == "0" else str(int(major) + 1)
    return f">={major}.{minor},<{following}"
