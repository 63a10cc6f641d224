"""Reads a model from bytes or a file into a checked onnx-ir model with named layers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake import naming, parts, zip_maps
from headrace.runtime.intake.check import check_model
from headrace.runtime.intake.external import ExternalFiles, FilesInFolder, OpenFiles, SentFiles
from headrace.runtime.intake.inlining import settle_functions
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.references import check_references
from headrace.runtime.intake.stripping import strip
from headrace.runtime.intake.tensors import TensorData
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.system.graph_memory import watched
from headrace.runtime.system.load_stages import load_stage
from headrace.runtime.system.mapped_files import MappedFiles

__all__ = ["Limits", "from_bytes", "from_file", "open_file", "read_file"]


def from_bytes(
    data: Buffer,
    limits: Limits,
    files: MappedFiles | None = None,
    *,
    spooled: bool = False,
    beside: Mapping[str, Buffer] | None = None,
    notes: list[str] | None = None,
) -> ir.Model:
    """Reads a serialised ModelProto. The model's large tensors are views of `data`.

    Args:
        files: collects the files that are mapped.
        spooled: moves large tensors to a mapped file instead.
        beside: the files that hold the model's external data, by their path relative to the model;
            None if it may not have any.
        notes: collects how the model differs from the one that was given.

    Raises:
        InvalidModel: `data` is not a model, breaks a rule of ONNX, exceeds `limits`, or refers to
            external data that is not in `beside`. Or it does not use a file in `beside`.
    """
    if beside is None:
        return _model(data, limits, files, spooled, ExternalFiles(), notes)
    sent = SentFiles(beside, limits)
    model = _model(data, limits, files, spooled, sent, notes)
    sent.check_used()
    return model


def from_file(
    data: Buffer,
    limits: Limits,
    external: FilesInFolder | OpenFiles,
    *,
    spooled: bool = False,
    notes: list[str] | None = None,
) -> ir.Model:
    """The model of a file's bytes. Its external data is mapped. To replace a mapped file, rename
    another file over it. Writing into a mapped file changes the weights of a loaded network, and
    shortening a mapped file ends the server.

    Args:
        external: where its external data may be.
        spooled, notes: as in `from_bytes`.

    Raises:
        InvalidModel: as `from_bytes`, or a file cannot be read or is outside its folder.
    """
    return _model(data, limits, external.mapped, spooled, external, notes)


def read_file(path: Path, folder: Path, limits: Limits, root: Path | None = None) -> bytes:
    """The bytes of a model file. Raises as `open_file`."""
    with open_file(path, folder, limits, root) as file:
        return file.read()


@contextmanager
def open_file(
    path: Path, folder: Path, limits: Limits, root: Path | None = None
) -> Iterator[BufferedReader]:
    """A model file in `folder`. If it is a link, it may lead to any place in `root`, or without
    `root` in `folder`.

    Raises:
        InvalidModel: the file cannot be read, is too large, or is outside `folder`.
    """
    try:
        resolved = Path(os.path.realpath(path, strict=True))
        if not resolved.is_relative_to((root or folder).resolve()):
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
        with resolved.open("rb") as file:
            yield file
    except OSError as error:
        # Leave out the error's file name, so that clients do not see the server's folders.
        why = error.strerror or error
        raise InvalidModel(f"{path.name!r} cannot be read: {why}", field="model") from error


def _model(
    data: Buffer,
    limits: Limits,
    files: MappedFiles | None,
    spooled: bool,
    external: ExternalFiles,
    notes: list[str] | None,
) -> ir.Model:
    stripped, ranges = strip(data, limits)
    files = MappedFiles() if files is None else files
    tensors = TensorData(data, ranges, limits, files, external)
    proto = onnx.ModelProto()
    try:
        parts.merge(proto, stripped)
    except (DecodeError, UnicodeDecodeError):
        raise InvalidModel(
            "not a serialised ONNX model, or cut short; send the whole .onnx file as it is",
            field="model",
        ) from None
    maps = zip_maps.replace_zip_maps(proto)
    repeated = _give_once(proto.graph)
    with load_stage("check"):
        in_order = check_model(proto, limits, tensors)
    try:
        model = watched(ir.from_proto(proto))
        if not in_order:
            model.graph.sort()
            for function in model.functions.values():
                function.sort()
    except Exception as error:  # onnx-ir may raise errors that we did not foresee
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise InvalidModel(f"the model breaks a rule of ONNX: {reason}", field="model") from error
    for output in model.graph.outputs:
        if told := zip_maps.as_metadata(maps.get(output.name or "", ())):
            output.metadata_props[zip_maps.CLASSES] = told
    if notes is not None:
        notes.extend(zip_maps.note(*entry) for entry in maps.items())
        notes.extend(f"output {name!r} is listed twice, and given once" for name in repeated)
    with load_stage("check"):
        settle_functions(model, limits)
        check_references(model)
    tensors.attach(model, spooled=spooled)
    naming.name_layers(model.graph)
    for function in model.functions.values():
        naming.name_layers(function)
    return model


def _give_once(graph: onnx.GraphProto) -> list[str]:
    """Drops outputs that are listed before: replies name their outputs. Returns their names."""
    kept = {output.name: output for output in reversed(graph.output)}
    counts = Counter(output.name for output in graph.output)
    if len(counts) < len(graph.output):
        first = [kept[name] for name in counts]
        del graph.output[:]
        graph.output.extend(first)
    return [name for name, count in counts.items() if count > 1]
