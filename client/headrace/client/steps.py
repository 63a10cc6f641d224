"""Steps: what both clients do alike, written once.

Steps are a generator. It yields what is to be done, gets the result back, or has the error thrown
into it, and returns its own result. `run` does them on this thread, `run_on_loop` on an event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


def run(steps: Generator[S, Any, T], do: Callable[[S], Any]) -> T:
    """Runs steps to their end. Returns or raises what they do.

    Args:
        do: does one step. What interrupts it, as Ctrl-C does, closes the steps.
    """
    resume: Callable[[Any], S] = steps.send
    value: Any = None
    try:
        while True:
            step = resume(value)
            try:
                resume, value = steps.send, do(step)
            except Exception as error:  # noqa: BLE001 - it is the steps' to handle
                resume, value = steps.throw, error
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        value = None  # an error would keep this frame, and the frame the error
        steps.close()


async def run_on_loop(steps: Generator[S, Any, T], do: Callable[[S], Awaitable[Any]]) -> T:
    """Does the same as `run`, and leaves the loop free. A task that is cancelled closes the
    steps."""
    resume: Callable[[Any], S] = steps.send
    value: Any = None
    try:
        while True:
            step = resume(value)
            try:
                resume, value = steps.send, await do(step)
            except Exception as error:  # noqa: BLE001 - it is the steps' to handle
                resume, value = steps.throw, error
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        value = None
        steps.close()
