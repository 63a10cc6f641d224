"""A pipeline: the text that describes it, and the models that its steps name."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

from headrace.client.errors import invalid
from headrace.client.model import ModelContent, network_name, read_bytes, read_model

_SUFFIX: Final = ".toml"
_FILE: Final = "pipeline.toml"


@dataclass(frozen=True, slots=True)
class PipelineContent:
    """What the client sends of a pipeline.

    Attributes:
        models: by the name that the description has for the file.
    """

    text: str
    models: Mapping[str, ModelContent]


def is_pipeline(source: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether `source` is the path of a description."""
    return isinstance(source, str | os.PathLike) and Path(source).suffix == _SUFFIX


def pipeline_name(name: str, source: Any) -> str:
    """`name`, or if it is empty the default name: that of the file without its suffix, or that of
    its folder if the file is called ``pipeline.toml``.

    Raises:
        InvalidArgument: there is none.
    """
    path = Path(source).absolute() if is_pipeline(source) else None
    if path is not None and path.name == _FILE:
        path = path.parent / f"{path.parent.name}{_SUFFIX}"
    return network_name(name, path)


def read_pipeline(source: str | os.PathLike[str]) -> PipelineContent:
    """The pipeline of a file, or of a text.

    Args:
        source: a path, whose models lie in the same folder or below; or a text with more than one
            line, whose models lie in the working directory or below.

    Raises:
        InvalidArgument: a file cannot be read, or lies elsewhere.
    """
    if isinstance(source, str) and "\n" in source:
        text, folder = source, Path()
    else:
        text, folder = _text(source), Path(source).parent
    return PipelineContent(text, {name: _model(folder, name) for name in _models(text)})


def _text(path: str | os.PathLike[str]) -> str:
    try:
        return read_bytes(path, "pipeline").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid("pipeline", f"{os.fspath(path)} is not UTF-8: {error}") from None


def _models(text: str) -> list[str]:
    """The files that the steps name. The server says what else is wrong with the text."""
    try:
        steps = tomllib.loads(text).get("step", [])
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    named = [step.get("model") for step in steps if isinstance(step, dict)]
    return list(dict.fromkeys(name for name in named if name and isinstance(name, str)))


def _model(folder: Path, name: str) -> ModelContent:
    inside = Path(os.path.realpath(folder))
    if not Path(os.path.realpath(folder / name)).is_relative_to(inside):
        raise invalid("pipeline", f"the model {name!r} is outside the folder of the pipeline")
    return read_model(folder / name)
