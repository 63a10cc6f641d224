"""The processes that a server has started."""

from __future__ import annotations

from contextlib import suppress

import psutil

from headrace.runtime.network import onnx_inference
from tests.integration.harness import Server


def children(server: Server) -> list[psutil.Process]:
    """The processes of the server's devices. The one that infers types is none."""
    found = []
    for each in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if onnx_inference.__name__ not in each.cmdline():
                found.append(each)
    return found
