"""Memory that a client shares with its server: a file of /dev/shm that it has made and maps."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np

from headrace.client.plans.plan import CallBlocking, CallMethod
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import Array

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where shm_open(3) keeps its files
PREFIX: Final = "headrace-client-"
REGISTER_SECONDS: Final = 5.0


class ClientSegment(ABC):
    """Memory that this process has made and maps.

    Attributes:
        name: of its region on the server.
        memory: its bytes.
    """

    name: str
    size: int
    memory: Array

    @abstractmethod
    def registration(self) -> CallMethod | CallBlocking:
        """The step of a plan that tells the server of the memory."""

    @abstractmethod
    def remove(self) -> None:
        """Gives the memory back. The system frees it when nobody has it open or mapped. A process
        that was forked leaves its parent's memory alone."""


class NamedSegment(ClientSegment):
    """A file that its maker keeps locked while the maker lives, so that others can tell whether it
    is still in use. Only its maker shortens it, so it is safe to map. Its name is that of the file,
    too."""

    def __init__(self, size: int, folder: Path = FOLDER) -> None:
        """
        Raises:
            OSError: there is no such folder, or no room in it.
        """
        self.name = PREFIX + secrets.token_hex(16)
        self.size = size
        self._path = folder / self.name
        self._process = os.getpid()
        # It has no name until it is locked, because others remove a file that is not locked.
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # Reserves the pages, so that no access to them can fail for lack of memory.
            os.posix_fallocate(descriptor, 0, size)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            memory = mmap.mmap(descriptor, size)
            # With a folder's descriptor Python calls linkat(2), which follows this link.
            source = f"/proc/self/fd/{descriptor}"
            os.link(source, self._path, src_dir_fd=descriptor, follow_symlinks=True)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.memory = np.frombuffer(memory, np.uint8)

    def registration(self) -> CallMethod | CallBlocking:
        request = pb.RegisterSharedMemoryRequest(
            name=self.name, key=f"/{self.name}", bytes=self.size
        )
        return CallMethod("RegisterSharedMemory", request, REGISTER_SECONDS)

    def remove(self) -> None:
        if self._descriptor >= 0 and os.getpid() == self._process:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1


def sweep(folder: Path = FOLDER) -> int:
    """Removes segments whose makers were killed. Returns how many."""
    swept = 0
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError), _opened(path) as descriptor:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                swept += 1
    return swept


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
