"""Models from outside: bytes or a file in, a checked onnx-ir model with named layers out."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake import naming, onnx_bytes, parts
from headrace.runtime.intake.check import check_model
from headrace.runtime.intake.inlining import settle_functions
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.tensors import TensorData
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.system.graph_memory import watched
from headrace.runtime.system.mapped_files import MappedFiles

__all__ = ["Limits", "from_bytes", "from_file"]


def from_bytes(
    data: Buffer, limits: Limits, files: MappedFiles | None = None, *, spooled: bool = False
) -> ir.Model:
    """The model of a serialised ModelProto; its large tensors are views of `data`.

    Args:
        files: takes the files that are mapped.
        spooled: move large tensors to a mapped file instead.

    Raises:
        InvalidModel: it is not a model, breaks a rule of ONNX, exceeds `limits`, or refers to
            external data, which a model in bytes cannot have.
    """
    return _model(data, limits, files, spooled)


def from_file(
    path: Path,
    folder: Path,
    limits: Limits,
    files: MappedFiles | None = None,
    *,
    spooled: bool = False,
) -> ir.Model:
    """The model of a file in `folder`; external data, mapped, may lie in `folder` and below.

    The file itself is read. Files that are mapped have to be replaced by renaming others over them:
    writing into one changes the weights of a loaded network, shortening it ends the server. Takes
    `files` and `spooled` as `from_bytes`.

    Raises:
        InvalidModel: as `from_bytes`, or a file cannot be read or lies outside `folder`.
    """
    try:
        resolved = Path(os.path.realpath(path, strict=True))
        if not resolved.is_relative_to(folder.resolve()):
            raise InvalidModel(
                f"{path.name!r} leads out of the model's folder; put the file itself there",
                field="model",
            )
        if not resolved.is_file():
            raise InvalidModel(f"{path.name!r} is not a file", field="model")
        if resolved.stat().st_size > limits.model_bytes:
            raise InvalidModel(
                f"{path.name!r} has more than {limits.model_bytes} bytes; store its weights as "
                "external data",
                field="model",
            )
        data = resolved.read_bytes()
    except OSError as error:
        # Without the name that comes with the error: where the server's folders lie is not told.
        why = error.strerror or error
        raise InvalidModel(f"{path.name!r} cannot be read: {why}", field="model") from error
    return _model(data, limits, files, spooled, folder, path.parent)


def _model(
    data: Buffer,
    limits: Limits,
    files: MappedFiles | None,
    spooled: bool,
    folder: Path | None = None,
    base: Path | None = None,
) -> ir.Model:
    stripped, ranges = onnx_bytes.strip(data, limits)
    tensors = TensorData(data, ranges, limits, files=files, folder=folder, base=base)
    proto = onnx.ModelProto()
    try:
        parts.merge(proto, stripped)
    except (DecodeError, UnicodeDecodeError):
        raise InvalidModel(
            "not a serialised ONNX model, or cut short; send the whole .onnx file as it is",
            field="model",
        ) from None
    in_order = check_model(proto, limits, tensors)
    try:
        model = watched(ir.from_proto(proto))
        if not in_order:
            model.graph.sort()
            for function in model.functions.values():
                function.sort()
    except Exception as error:  # whatever onnx-ir meets that we did not foresee
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise InvalidModel(f"the model breaks a rule of ONNX: {reason}", field="model") from error
    settle_functions(model, limits)
    tensors.attach(model, spooled=spooled)
    naming.name_layers(model.graph)
    for function in model.functions.values():
        naming.name_layers(function)
    return model
