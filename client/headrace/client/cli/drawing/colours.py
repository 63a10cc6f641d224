"""Colours of devices that colour-blind people can tell apart, and readable colours of the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_BLACK, _WHITE = "#000000", "#FFFFFF"


@dataclass(frozen=True, slots=True)
class Paint:
    """The colours of a box, of its text, and of the group around such boxes, as ``#RRGGBB``."""

    fill: str
    text: str
    tint: str


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio of two colours, 1 to 21; text needs 4.5."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [value / 255 for value in _parts(colour)]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _parts(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _paint(fill: str) -> Paint:
    text = max(_BLACK, _WHITE, key=lambda colour: contrast(fill, colour))
    tint = "".join(f"{255 - (255 - value) // 6:02X}" for value in _parts(fill))
    return Paint(fill, text, f"#{tint}")


DEVICES: Final = tuple(
    map(_paint, ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#0072B2"))
)
"""Okabe and Ito's palette (https://jfly.uni-koeln.de/color/) without the red, in the order of use;
from the seventh device on colours repeat, and the names tell them apart."""

UNSUPPORTED: Final = _paint("#B00020")
UNKNOWN: Final = _paint("#FFFFFF")


def of_device(position: int) -> Paint:
    """The colours of the device at a position of the legend."""
    return DEVICES[position % len(DEVICES)]
