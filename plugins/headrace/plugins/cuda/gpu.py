"""GPUs as the driver tells them, and which of them CUDA shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or a part of one (MIG) that is used like one.

    Attributes:
        index: the driver's number for it, or for the GPU that it is a part of; follows the bus.
        memory_bytes: all that it has.
        compute_capability: generation of its instructions, as (9, 0).
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]

    @property
    def architecture(self) -> str:
        """What compiled kernels depend on, as ``sm_90``."""
        return "sm_{}{}".format(*self.compute_capability)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """OPTIMIZATION_CAPABILITIES."""
        later = ("BF16",) if self.compute_capability >= (8, 0) else ()
        return ("FP32", "FP16", *later, "FP64")


def visible(
    gpus: Sequence[Gpu], setting: str | None, find: Callable[[str], Gpu | None]
) -> list[Gpu]:
    """The GPUs that CUDA shows the process, in its order, so that their places are its ids.

    As CUDA's documentation has it: CUDA_VISIBLE_DEVICES lists numbers, or beginnings of unique ids;
    what follows one that is none counts for nothing. Drivers before R570 show but one part.

    Args:
        gpus: all, in the order of the bus; of one that is divided, the parts that CUDA can use.
        setting: CUDA_VISIBLE_DEVICES; None if it is not set.
        find: the GPU, or part of one, of a unique id that is none of those of `gpus`.
    """
    if setting is None:
        return list(gpus)
    shown: list[Gpu] = []
    for word in (each.strip() for each in setting.split(",")):
        if word.startswith("MIG-"):
            known = find(word)
            found = [known] if known is not None else []
        elif word.isdigit():
            found = [gpu for gpu in gpus if gpu.index == int(word)]
        else:
            alike = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
            found = alike if len(alike) == 1 else []
        if not found or found[0] in shown:
            break
        shown += found
    return shown
