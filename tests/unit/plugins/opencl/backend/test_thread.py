"""Work that waits for the backend's one thread; needs an OpenCL device, as the backend does."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS

pytest.importorskip("tinygrad", reason="tinygrad is not installed: install the extra 'opencl'")

from headrace.plugins.opencl.backend.kernel_folder import KernelFolder
from headrace.plugins.opencl.backend.thread import BackendThread
from headrace.runtime.errors import Cancelled, DeadlineExceeded, Unavailable
from headrace.runtime.execution.cancel import CancelToken


@pytest.mark.parametrize(
    "hidden",
    [
        'os.environ["OCL_ICD_VENDORS"] = "/nonexistent"',
        "DLL.findlib = lambda *_, **__: None",
    ],
    ids=["no driver", "no library that loads drivers"],
)
def test_a_machine_without_a_driver_has_no_such_device(hidden: str, tmp_path: Path) -> None:
    """Only a new process finds the drivers anew."""
    script = f"""
import os, pathlib
os.environ["DEV"] = "CL"  # as the plugin does
from tinygrad.runtime.support.c import DLL
{hidden}
from headrace.plugins.opencl.backend.thread import BackendThread
from headrace.plugins.opencl.backend.kernel_folder import KernelFolder
from headrace.runtime.errors import NotInstalled
try:
    BackendThread(KernelFolder(pathlib.Path({str(tmp_path)!r})))
except NotInstalled as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "install the driver of your GPU" in told.stdout, told.stderr


@pytest.fixture
def backend(tmp_path: Path) -> BackendThread:
    try:
        return BackendThread(KernelFolder(tmp_path))
    except Unavailable as error:
        pytest.skip(str(error))


def test_who_waits_for_other_work_hears_that_he_is_cancelled(backend: BackendThread) -> None:
    begun, over = threading.Event(), threading.Event()

    def compile_long() -> bool:
        begun.set()
        return over.wait(PATIENCE_SECONDS)

    working = CancelToken()
    worker = threading.Thread(target=backend.run, args=(compile_long, working))
    worker.start()
    assert begun.wait(PATIENCE_SECONDS)
    waiting = CancelToken()
    timer = threading.Timer(0, waiting.cancel, [DeadlineExceeded("EXECUTION_TIMEOUT")])
    timer.start()
    ran: list[str] = []
    with pytest.raises(DeadlineExceeded, match="EXECUTION_TIMEOUT"):
        backend.infer(lambda: ran.append("waited for"), waiting)
    working.cancel(Cancelled("what has begun hears it by itself"))
    over.set()
    worker.join()
    assert backend.infer(lambda: "next", CancelToken()) == "next"
    assert not ran
