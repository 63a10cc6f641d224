"""Servers without ports, one after the other, each in a process of its own. Each may be killed just
before one of its changes of files.

The program forks for each line of its input, the order of a server, so that all servers together
import what they need once. Each line of its output is what a server reports, or the exit code of
one that does not live to report.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.system.file_identity import FileIdentity
from headrace.runtime.transform.options import LoadRequest
from headrace.server.backend import ServerCore
from headrace.server.settings.sources import load_settings
from headrace.testing.infer_request import InferRequest

X: Final = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
_LATE: Final = (
    "fsspec.implementations.http",
    "fsspec.implementations.local",
    "headrace.plugins.batch.plugin",
    "headrace.plugins.cpu.plugin",
    "headrace.plugins.hetero.plugin",
    "headrace.plugins.pipeline.plugin",
    "headrace.plugins.template.executable_network",
    "headrace.plugins.template.plugin",
    "headrace.plugins.template.transformations",
)
"""What a server imports when it needs it first."""
_WRITING: Final = os.O_WRONLY | os.O_RDWR
_REMOVALS: Final = ("os.remove", "os.rmdir")
_CHANGES: Final = (
    *("open", "os.link", "os.rename", "os.symlink", "os.truncate", "os.utime"),
    *_REMOVALS,
)
_ADOPT_ORPHANS: Final = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


class Changes:
    """An audit hook that counts a process's changes of named files below a folder. Locks and files
    without a name end with the process, and a folder more or less makes no difference.

    Args:
        fatal: the number of the change that the process does not live to make; -1 for none.
    """

    def __init__(self, folder: str, fatal: int) -> None:
        self.count = 0
        self._folder = folder
        self._fatal = fatal
        self._counting = threading.Lock()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_change(event, *arguments):
            return
        with self._counting:
            if self.count == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1

    def _is_change(self, event: str, *arguments: Any) -> bool:
        if event not in _CHANGES or (event == "open" and not arguments[2] & _WRITING):
            return False
        place = arguments[1 if event == "os.symlink" else 0]
        if isinstance(place, int):  # an open file, which is counted when it is opened
            return False
        path = Path(os.fsdecode(place))
        if event not in _REMOVALS:
            return path.is_relative_to(self._folder)
        if not path.is_absolute():  # so `shutil.rmtree` names what it removes
            return True
        return path.is_relative_to(self._folder) and os.path.lexists(path)


class Warnings(logging.Handler):
    """Keeps what is logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


async def answers(order: Mapping[str, Any]) -> dict[str, str]:
    """Starts a server, loads the clients' networks that it lacks, and asks all networks."""
    server = ServerCore(load_settings(order["settings"], {}))
    await server.load()
    core, found = server.core, {}
    for name, model in order["given"].items():
        if not core.networks.has(name):
            request = LoadRequest(name, DeviceName.parse("CPU"))
            read = partial(core.models.from_bytes, Path(model).read_bytes())
            await asyncio.wrap_future(core.load_network(request, read))
    for name in order["asked"]:
        entry = core.networks.acquire(name, "")
        assert entry.executable is not None
        (output,) = InferRequest(entry.executable).infer({"x": X}).values()
        found[name] = np.asarray(output).tobytes().hex()
        core.networks.release(entry)
    await asyncio.to_thread(server.stop, time.monotonic() + 60)
    server.close()
    return found


def report(order: Mapping[str, Any]) -> dict[str, Any]:
    os.environ["TMPDIR"] = order["folder"]
    warnings, changes = Warnings(), Changes(order["folder"], order["fatal"])
    logging.getLogger().addHandler(warnings)
    sys.addaudithook(changes)
    found = asyncio.run(answers(order))
    return {"answers": found, "changes": changes.count, "warnings": warnings.texts}


def main() -> None:
    for module in _LATE:
        import_module(module)
    gc.freeze()  # what is imported: a look at it copies it for each server
    FileIdentity.is_settled = True  # type: ignore[method-assign, assignment]
    os.fsync = lambda fd: None  # a kill loses nothing that was written
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1)
    for line in sys.stdin:
        read, write = os.pipe()
        server = os.fork()
        if not server:
            with os.fdopen(write, "w") as file:
                json.dump(report(json.loads(line)), file)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as told:
            text = told.read()
        _, status = os.waitpid(server, 0)
        with suppress(ChildProcessError):
            while True:
                os.wait()  # for the processes of its devices
        print(text or os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
