"""What ``headrace tune`` tries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

HINTS: Final = ("LATENCY", "THROUGHPUT")
BATCHES: Final = (4, 16)
PRECISION: Final = "INFERENCE_PRECISION_HINT"
COARSE: Final = ("f16", "bf16")


class Variant(NamedTuple):
    """A way to load a network.

    Attributes:
        config: the keys that differ from the network's own configuration.
    """

    device: str
    config: Mapping[str, str]

    def __str__(self) -> str:
        said = ", ".join(f"{key}={value}" for key, value in self.config.items())
        return f"{self.device} {said}".rstrip()


def candidates(
    own: str,
    devices: Mapping[str, int],
    *,
    batches: Sequence[int] = BATCHES,
    coarse: bool = False,
) -> list[Variant]:
    """The network as it is loaded, and other ways to load it.

    Args:
        own: the device that it is on.
        devices: how many streams a network may have on each device to be tried.
        batches: the sizes of batches to be tried.
        coarse: whether fewer bits may be computed with than the network's own.
    """
    found = [Variant(own, {})]
    for device, streams in devices.items():
        found += [] if device == own else [Variant(device, {})]
        found += [Variant(device, {"PERFORMANCE_HINT": hint}) for hint in HINTS]
        if coarse:
            found += [
                Variant(device, {PRECISION: precision, "PERFORMANCE_HINT": hint})
                for precision in COARSE
                for hint in HINTS
            ]
        for number in _powers(streams):
            found.append(Variant(device, {"NUM_STREAMS": str(number)}))
            if number < streams:
                threads = {"NUM_STREAMS": str(number), "INFERENCE_NUM_THREADS": str(number)}
                found.append(Variant(device, threads))
        if not device.startswith("BATCH:"):
            inner = f"[{device}]" if ":" in device else device
            found += [Variant(f"BATCH:{inner}({size})", {}) for size in batches]
    return found


def _powers(most: int) -> Iterable[int]:
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most
