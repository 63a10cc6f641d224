"""Translates tinygrad's errors. They share no base class, and some are Python's own."""

from __future__ import annotations

from headrace.runtime.errors import HeadraceError, InvalidArgument, ResourceExhausted

_TOO_MANY_ELEMENTS = "UOp verification failed"
"""The start of tinygrad's message that a kernel's index does not fit into 32 bits."""


def run_failure(error: Exception, what: str = "the request") -> Exception:
    """The error to raise for an error that a run raised.

    ResourceExhausted: a result is too large for the memory, or has more elements than a kernel can
    count. InvalidArgument: NumPy does not take a result, for instance because it has too many axes.
    The error itself: anything else.

    Args:
        what: what the run was for.
    """
    if isinstance(error, HeadraceError):
        return error
    if out_of_memory(error):
        return ResourceExhausted(f"no memory for {what}: {str(error) or 'a result is too large'}")
    if str(error).startswith(_TOO_MANY_ELEMENTS):
        return ResourceExhausted("a result has more elements than a kernel of the device can count")
    if isinstance(error, ValueError):
        return InvalidArgument(f"the network does not take these inputs: {error}", field="inputs")
    return error


def out_of_memory(error: BaseException | None) -> bool:
    """Whether the error or one of its causes is a MemoryError."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__
    return error is not None
