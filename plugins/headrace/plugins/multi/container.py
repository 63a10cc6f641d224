"""What an exported network keeps of the devices that served it: each one's own bytes.

A device that exports nothing compiles the network again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.runtime.device.plugin import Plugin
from headrace.runtime.virtual.frames import FrameFormat

_FORMAT: Final = FrameFormat(b"\x89MULTI\r\n\x1a\n", 2, "the devices'")


@dataclass(frozen=True, slots=True)
class Frame:
    """A device's own bytes of the network; empty if it exports none."""

    device: str
    architecture: str
    backend_version: str
    native: bytes = field(default=b"", repr=False)

    def why_unusable(self, plugin: Plugin) -> str:
        """Why the device here cannot use the bytes; empty if it can."""
        pairs = (
            ("device architecture", self.architecture, plugin.architecture),
            ("backend version", self.backend_version, plugin.backend_version),
        )
        return "; ".join(f"{what} {was!r}, here {now!r}" for what, was, now in pairs if was != now)


def write(frames: Iterable[Frame]) -> bytes:
    """The container of the frames, in their order."""
    return _FORMAT.write(
        ([each.device, each.architecture, each.backend_version], each.native) for each in frames
    )


def read(data: bytes) -> tuple[Frame, ...]:
    """The frames of a container. Raises as `FrameFormat.read`."""
    return _FORMAT.read(data, _frame)


def _frame(facts: Any, native: bytes) -> Frame:
    device, architecture, backend_version = map(str, facts)
    return Frame(device, architecture, backend_version, native)
