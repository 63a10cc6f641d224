"""What an inference request says and what comes of it, free of gRPC and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from headrace.runtime.execution.job import Sequence
from headrace.runtime.network.values import Value


class Region(NamedTuple):
    """A part of a region of shared memory that a client has registered."""

    name: str
    offset: int
    byte_size: int


class SharedTensor(NamedTuple):
    """An input whose bytes lie in shared memory."""

    datatype: str
    shape: tuple[int, ...]
    region: Region


class RequestedOutput(NamedTuple):
    """An output that a client asks for.

    Attributes:
        classification: the number of classes to return instead of the tensor; 0 for the tensor.
        region: where its bytes go; None for the response.
        binary: as bytes behind JSON; None where the request as a whole says so. REST alone.
    """

    name: str
    classification: int = 0
    region: Region | None = None
    binary: bool | None = None


Input: TypeAlias = "Value | SharedTensor"


@dataclass(slots=True)
class InferCall:
    """One inference request.

    Attributes:
        version: empty for the one that the name stands for.
        outputs: empty for all.
        priority: as `Job` has it.
        timeout_seconds: 0 for none.
        empty_final: on a stream, whether the caller waits for a response that says that it is the
            last; every response here says so.
        binary_outputs: REST alone: what an output's `binary` is where it says nothing.
    """

    model: str
    version: str
    id: str
    inputs: dict[str, Input]
    outputs: tuple[RequestedOutput, ...] = ()
    priority: int = 0
    timeout_seconds: float = 0.0
    sequence: Sequence | None = None
    empty_final: bool = False
    binary_outputs: bool = False

    @property
    def uses_regions(self) -> bool:
        """Whether an input or output lies in shared memory."""
        return any(isinstance(each, SharedTensor) for each in self.inputs.values()) or any(
            each.region is not None for each in self.outputs
        )

    def output_regions(self) -> Iterator[tuple[RequestedOutput, Region]]:
        """The outputs that go to shared memory, and where."""
        for output in self.outputs:
            if output.region is not None:
                yield output, output.region


@dataclass(slots=True)
class InferResult:
    """What came of a request: the outputs in the order in which they were asked for."""

    model: str
    version: str
    id: str
    outputs: list[tuple[RequestedOutput, Value]]
    parameters: dict[str, Any] = field(default_factory=dict)
