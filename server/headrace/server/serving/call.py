"""An inference request and its result, whatever protocol they came by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from headrace.runtime.execution.job import Job, Sequence
from headrace.runtime.network.values import Array, Value
from headrace.wire.codec import Buffer, CodecError

MAX_TENSORS: Final = 4096
"""The most inputs of a request, and the most outputs that it asks for."""


class RegionPart(NamedTuple):
    """A part of a region of shared memory.

    Attributes:
        field: what errors call it.
    """

    name: str
    offset: int
    byte_size: int
    field: str


class SharedTensor(NamedTuple):
    """An input whose bytes lie in shared memory.

    Attributes:
        dtype: None if not every byte sequence is a value of the type, so that it has to be checked.
        decode: makes the tensor of its bytes. Raises CodecError.
    """

    region: RegionPart
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    decode: Callable[[Buffer], Value]


class WantedOutput(NamedTuple):
    """What a client wants of an output, beside its tensor in the message.

    Attributes:
        classification: the number of classes to return instead of the tensor. 0 returns the tensor.
        region: where the output's bytes go. None puts them into the message.
        binary: whether the tensor is sent as bytes behind the JSON. If None, the request's
            `binary_outputs` decides. Only REST uses this.
    """

    classification: int = 0
    region: RegionPart | None = None
    binary: bool | None = None


Input: TypeAlias = "Value | SharedTensor"

NOTHING_MORE: Final[Mapping[str, WantedOutput]] = MappingProxyType({})


@dataclass(slots=True)
class InferCall:
    """One inference request.

    Attributes:
        version: empty for the version that the name stands for.
        outputs: empty for all outputs.
        wanted: by the output's name, for outputs that are not just tensors in the message.
        priority, performance_counts: `Job` has them as `priority` and `profile`.
        timeout_seconds: 0 for no timeout.
        encode_texts: how texts lie in shared memory. None if they do not travel there.
        binary_outputs: the default for an output's `binary`. Only REST uses this.
    """

    network: str
    version: str
    id: str
    inputs: dict[str, Input]
    outputs: tuple[str, ...]
    wanted: Mapping[str, WantedOutput]
    priority: int = 0
    timeout_seconds: float = 0.0
    sequence: Sequence | None = None
    performance_counts: bool = False
    encode_texts: Callable[[Array], Buffer] | None = None
    binary_outputs: bool = False

    @property
    def sequence_id(self) -> str:
        """Empty without a sequence."""
        return "" if self.sequence is None else self.sequence.id

    @property
    def uses_regions(self) -> bool:
        """Whether an input or output lies in shared memory."""
        if SharedTensor in map(type, self.inputs.values()):
            return True
        return bool(self.wanted) and any(output.region for output in self.wanted.values())

    @property
    def wants_classes(self) -> bool:
        """Whether classes are wanted in the place of an output."""
        return any(output.classification for output in self.wanted.values())

    def regions(self) -> Iterator[RegionPart]:
        """The places of all inputs and outputs in shared memory."""
        for value in self.inputs.values():
            if type(value) is SharedTensor:
                yield value.region
        for wanted in self.wanted.values():
            if wanted.region is not None:
                yield wanted.region


@dataclass(slots=True)
class InferResult:
    """The result of a request.

    Attributes:
        job: has computed it. `output_names` are the outputs in the request's order.
        outputs: the value of each.
    """

    call: InferCall
    job: Job
    outputs: Mapping[str, Value]


def check_tensors(field: str, count: int) -> None:
    """
    Raises:
        CodecError: a request has so many inputs, or asks for so many outputs.
    """
    if count > MAX_TENSORS:
        raise CodecError(field, f"has {count} tensors; at most {MAX_TENSORS}")
