"""GPUs as the driver reports them, and which of them CUDA shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or a part of one (MIG) that is used like one.

    Attributes:
        index: the driver's number for it, or for the GPU that it is a part of, in bus order.
        memory_bytes: all the memory that it has.
        compute_capability: the generation of its instructions, for example (9, 0).
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]

    @property
    def architecture(self) -> str:
        """The architecture that compiled kernels depend on, for example ``sm_90``."""
        return "sm_{}{}".format(*self.compute_capability)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """OPTIMIZATION_CAPABILITIES."""
        later = ("BF16",) if self.compute_capability >= (8, 0) else ()
        return ("FP32", "FP16", *later, "FP64")


def visible(
    gpus: Sequence[Gpu], setting: str | None, find: Callable[[str], Gpu | None]
) -> list[Gpu]:
    """The GPUs that CUDA shows to the process. They are in CUDA's order, so a GPU's place in the
    list is its CUDA id.

    CUDA's documentation says: CUDA_VISIBLE_DEVICES lists numbers, or beginnings of unique ids. CUDA
    ignores everything after the first invalid one. Drivers before R570 show only one part.

    Args:
        gpus: all GPUs, in bus order. A divided GPU is replaced with the parts that CUDA can use.
        setting: CUDA_VISIBLE_DEVICES; None if it is not set.
        find: returns the GPU or part with a unique id that no GPU in `gpus` has.
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
