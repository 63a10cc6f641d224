"""What an exported network keeps of its subgraphs: where each runs, and its device's own bytes.

A subgraph whose device exports nothing has no bytes here: its frame says which layers and ends make
it, its ONNX is cut out of the network once more, and its device compiles that. So the weights
travel once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.plugins.hetero.flow import Ends
from headrace.runtime.virtual.frames import FrameFormat

_FORMAT: Final = FrameFormat(b"\x89HETERO\r\n\x1a\n", 2, "the subgraphs'")


@dataclass(frozen=True, slots=True)
class Frame:
    """One subgraph.

    Attributes:
        device: as the list names it.
        layers: its nodes in the network's graph.
        native: empty if the device exports nothing.
    """

    device: str
    layers: tuple[str, ...]
    ends: Ends
    architecture: str
    backend_version: str
    native: bytes = field(default=b"", repr=False)


def write(frames: Iterable[Frame]) -> bytes:
    """The container of the frames, in their order."""
    return _FORMAT.write((_facts(frame), frame.native) for frame in frames)


def read(data: bytes) -> tuple[Frame, ...]:
    """The frames of a container. Raises as `FrameFormat.read`."""
    return _FORMAT.read(data, _frame)


def _facts(frame: Frame) -> dict[str, Any]:
    return {
        "device": frame.device,
        "layers": frame.layers,
        "inputs": frame.ends.inputs,
        "outputs": frame.ends.outputs,
        "architecture": frame.architecture,
        "backend_version": frame.backend_version,
    }


def _frame(facts: Mapping[str, Any], native: bytes) -> Frame:
    return Frame(
        device=str(facts["device"]),
        layers=tuple(map(str, facts["layers"])),
        ends=Ends(tuple(map(str, facts["inputs"])), tuple(map(str, facts["outputs"]))),
        architecture=str(facts["architecture"]),
        backend_version=str(facts["backend_version"]),
        native=native,
    )
