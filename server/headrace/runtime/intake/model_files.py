"""The files of a model, which stay open until somebody asks for its graph.

So they are there under whatever names, and another process that gets their descriptors can read
the model, too.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from headrace.ipc.segments import write_file
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.intake.external import OpenFiles
from headrace.runtime.intake.limits import Limits
from headrace.runtime.system.buffers import Buffer

_log = logging.getLogger(__name__)

OWN: Final = ""
"""The location of the model itself, among those of its external data."""


class ModelFiles:
    """Thread-safe.

    Args:
        files: descriptors by location, which it closes.
        digests: the SHA-256 of each file in hexadecimal, by location.

    Attributes:
        limits: of the model.
    """

    def __init__(
        self, files: Mapping[str, int], digests: Mapping[str, str], limits: Limits
    ) -> None:
        self._files = dict(files)
        self._digests = dict(digests)
        self.limits = limits
        weakref.finalize(self, _close, tuple(files.values()))

    @property
    def descriptors(self) -> Sequence[int]:
        """Those of its files. They are open as long as it is referred to."""
        return tuple(self._files.values())

    @classmethod
    def written(cls, pieces: Iterable[Buffer], digests: Mapping[str, str], limits: Limits) -> Self:
        """A model that lies in no file, in one without a name, or in memory if there is no room.

        Raises:
            OSError: there is no memory either.
        """
        kept = [*pieces]
        try:
            with tempfile.TemporaryFile(prefix="headrace-model-") as file:
                file.writelines(kept)
                file.flush()
                # Whoever gets the descriptor may not write.
                own = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            _log.warning("a model stays in memory: no room for a temporary file: %s", error)
            with write_file(kept) as memory:
                own = os.dup(memory)
        return cls({OWN: own}, digests, limits)

    def to_json(self) -> dict[str, Any]:
        """Tells a process that gets the descriptors what they are."""
        return {
            "digests": [self._digests[location] for location in self._files],
            "locations": [*self._files],
        }

    @classmethod
    def received(cls, told: Mapping[str, Any], descriptors: Sequence[int]) -> Self:
        """What `to_json` told of. The model's limits have been checked. It closes the
        descriptors."""
        files = dict(zip(told["locations"], descriptors, strict=True))
        digests = dict(zip(told["locations"], told["digests"], strict=True))
        return cls(files, digests, Limits(model_bytes=os.fstat(files[OWN]).st_size))

    def read(self) -> tuple[bytes, OpenFiles]:
        """The model, and the files of its external data.

        Raises:
            FailedPrecondition: a file was written to.
        """
        beside = {location: file for location, file in self._files.items() if location != OWN}
        # Opened anew, because the other process reads at the same offset of the same descriptor.
        data = Path(f"/proc/self/fd/{self._files[OWN]}").read_bytes()
        external = OpenFiles(beside, self.limits)
        self._check(OWN, data)
        for location in beside:
            self._check(location, external.find(location, location))
        return data, external

    # -- inside --

    def _check(self, location: str, data: bytes | memoryview) -> None:
        if hashlib.sha256(data).hexdigest() != self._digests[location]:
            raise FailedPrecondition(
                "the model's file was written to since the network was loaded; load it again",
                field="model",
            )


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)
