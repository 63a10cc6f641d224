"""The only thread that may use tinygrad, and the devices that it finds when it starts."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import cache
from typing import Final, TypeVar

from tinygrad.codegen import to_program_cache
from tinygrad.engine.realize import runtime_cache
from tinygrad.schedule import schedule_cache

from headrace.plugins.opencl.backend.devices import NoDevice, OpenClDevice, find
from headrace.plugins.opencl.backend.kernel_folder import KernelFolder
from headrace.runtime.errors import NotInstalled, Unavailable
from headrace.runtime.execution.cancel import CancelToken

_T = TypeVar("_T")

ENOUGH_KERNELS: Final = 512


class BackendThread:
    """Runs functions one at a time on its own thread. Thread-safe.

    tinygrad computes wrong results without an error if two threads use it at once. Its kernel cache
    belongs to the thread that opened it.

    Args:
        kernels: the folder of compiled kernels.

    Attributes:
        devices: the devices in the order of DEVICE_ID.

    Raises:
        NotInstalled: there is no OpenCL device, or no driver for it.
        Unavailable: no OpenCL device answers.
    """

    def __init__(self, kernels: KernelFolder) -> None:
        self._kernels = kernels
        self._thread = _thread()
        try:
            self.devices: tuple[OpenClDevice, ...] = tuple(self.run(find))
        except Exception as error:
            reason = str(error) or type(error).__name__
            failure = NotInstalled if isinstance(error, NoDevice) else Unavailable
            raise failure(
                f"no OpenCL device answers ({reason}); install the driver of your GPU, or PoCL for "
                f"processors: apt-get install pocl-opencl-icd ocl-icd-libopencl1"
            ) from error

    def run(self, function: Callable[[], _T], token: CancelToken | None = None) -> _T:
        """Runs a function that may make kernels, and returns its result.

        Args:
            token: ends the wait for other work if it is cancelled before the function begins.

        Raises:
            What the function raises, or the error that `token` was cancelled with.
        """

        def make() -> _T:
            with self._kernels.making():
                return function()

        return self.infer(make, token)

    def infer(self, function: Callable[[], _T], token: CancelToken | None = None) -> _T:
        """As `run`, but does not lock the folder of kernels. A session does that when it makes
        kernels."""
        work = self._thread.submit(function)
        if token is None:
            return work.result()
        token.attach(work.cancel)  # does nothing once the function has begun
        try:
            return work.result()
        except CancelledError:
            assert token.error is not None
            raise token.error from None
        finally:
            token.detach(work.cancel)

    def forget(self) -> None:
        """Frees the memory that closed networks held."""
        self.run(_forget)


def kept_kernels() -> int:
    """The number of entries in tinygrad's caches of kernels and schedules. It grows when tinygrad
    makes new kernels. For the backend's thread only."""
    return len(to_program_cache) + len(schedule_cache) + len(runtime_cache)


def bound_kernels(most: int = ENOUGH_KERNELS) -> None:
    """Empties tinygrad's caches if they hold more than `most` kernels, because tinygrad keeps every
    kernel. It makes needed kernels again. For the backend's thread, between runs."""
    if _dropped(most):
        gc.collect()


def _forget() -> None:
    _dropped(ENOUGH_KERNELS)
    gc.collect()


def _dropped(most: int) -> bool:
    if len(to_program_cache) <= most:
        return False
    for kept in (to_program_cache, schedule_cache, runtime_cache):
        kept.clear()
    return True


@cache
def _thread() -> ThreadPoolExecutor:
    """The one thread for the whole process, because tinygrad's state is global. It ends with the
    process."""
    return ThreadPoolExecutor(1, thread_name_prefix="tinygrad")
