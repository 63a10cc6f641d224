"""CUDA lists its GPUs, and where it does not work it says what to mend."""

from __future__ import annotations

import _ctypes
import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from elftools.common.exceptions import ELFError

from headrace.plugins.cuda import create_plugin
from headrace.plugins.cuda.backend import machine, nvml
from headrace.plugins.cuda.backend.gpu import Gpu, gpus
from headrace.plugins.cuda.backend.machine import lacking, needed, this_machine, without_provider
from headrace.runtime.errors import NotInstalled, Unavailable
from headrace.testing.services import services
from tests.support.paper_gpu import GPUS


class PaperDriver:
    """CUDA's driver library, which shows a whole GPU and a part of one, or answers `code`."""

    WHOLE, PART = bytes(range(16)), bytes(range(1, 17))

    def __init__(self, code: int = 0, count: int = 2) -> None:
        self._code = code
        self._count = count

    def cuInit(self, flags: int) -> int:
        return self._code

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self._count
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: ctypes.c_int) -> int:
        name.value = b"NVIDIA H100"
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: ctypes.c_int) -> int:
        memory._obj.value = 80 * 2**30
        return 0

    def cuDeviceGetAttribute(self, found: Any, attribute: int, device: ctypes.c_int) -> int:
        found._obj.value = {75: 9, 76: 0}[attribute]
        return 0

    def cuDeviceGetUuid(self, found: Any, device: ctypes.c_int) -> int:
        found.raw = self.WHOLE
        return 0

    def cuDeviceGetUuid_v2(self, found: Any, device: ctypes.c_int) -> int:
        found.raw = self.PART if device.value else self.WHOLE
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = {100: b"no CUDA-capable device is detected"}.get(code)
        return 0


def test_the_gpus_are_those_that_cuda_shows_and_parts_are_told_from_whole_ones() -> None:
    assert gpus(PaperDriver()) == [
        Gpu("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "NVIDIA H100", 80 * 2**30, (9, 0)),
        Gpu("MIG-01020304-0506-0708-090a-0b0c0d0e0f10", "NVIDIA H100", 80 * 2**30, (9, 0)),
    ]


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (PaperDriver(100), r"no CUDA-capable device is detected \(CUDA error 100\).*--gpus all"),
        (PaperDriver(803), r"unknown error \(CUDA error 803\); restart the machine"),
        (PaperDriver(count=0), "shows no GPU; CUDA_VISIBLE_DEVICES may hide"),
    ],
)
def test_a_driver_without_gpus_is_told_in_its_own_words(driver: PaperDriver, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        gpus(driver)


def test_a_gpu_says_what_it_computes_in() -> None:
    assert GPUS[0].capabilities == ("FP32", "FP16", "BF16", "FP64")
    assert GPUS[1].capabilities == ("FP32", "FP16", "FP64")
    assert GPUS[1].architecture == "sm_75"


# -- what is missing --


def test_without_onnx_runtime_for_gpus_the_device_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "version")
    with pytest.raises(NotInstalled):
        this_machine(lambda: None)
    (tmp_path / "version").touch()  # a driver: its user may expect the GPU to be used
    with pytest.raises(Unavailable) as caught:
        this_machine(lambda: None)
    assert not isinstance(caught.value, NotInstalled)


def test_without_onnx_runtime_neither(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "version")
    monkeypatch.setitem(sys.modules, "headrace.plugins.cuda.plugin", None)
    with services() as offered, pytest.raises(NotInstalled, match="its extra 'cuda'"):
        create_plugin("CUDA", offered, {})


@pytest.mark.parametrize(
    ("packages", "reason"),
    [
        (["onnxruntime"], "onnxruntime is for processors.*pip install onnxruntime-gpu"),
        (["onnxruntime", "onnxruntime-gpu"], "installed over onnxruntime-gpu"),
        ([], "built without"),
    ],
)
def test_the_package_to_mend_is_told(packages: list[str], reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        raise Unavailable(without_provider(packages))


def test_the_first_library_that_is_not_there_is_told_with_the_remedy() -> None:
    def load(name: str) -> object:
        if name != "libcublasLt.so.13":
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return object()

    assert lacking(["libcublasLt.so.13"], "install it", load) == ""
    assert lacking(["libcublasLt.so.13", "libcudnn.so.9"], "install it", load) == (
        "a library cannot be loaded: libcudnn.so.9: cannot open shared object file: No such file "
        "or directory; install it"
    )


def test_what_a_library_needs_is_read_from_its_file(tmp_path: Path) -> None:
    assert "libc.so.6" in needed(Path(_ctypes.__file__))
    path = tmp_path / "lib.so"
    path.write_bytes(b"!" * 100)
    with pytest.raises(ELFError):
        needed(path)


def test_a_driver_that_does_not_tell_its_memory_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed(Exception):
        pass

    def lost(_: object) -> object:
        raise Failed("GPU is lost")

    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Unavailable, match="nvidia-ml-py is not installed"):
        nvml.Nvml().taken_bytes("GPU-1")
    binding = SimpleNamespace(
        NVMLError=Failed, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lost
    )
    monkeypatch.setitem(sys.modules, "pynvml", binding)
    with pytest.raises(Unavailable, match="GPU is lost"):
        nvml.Nvml().taken_bytes("GPU-1")
    assert nvml.Nvml().taken_by("GPU-1", 1) is None


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU, which it would try")
def test_the_tests_of_gpus_say_so_where_there_is_none() -> None:
    root = Path(__file__).parents[4]
    said = subprocess.run(
        ["make", "--no-print-directory", "test-cuda"], cwd=root, capture_output=True, text=True
    )
    assert said.returncode == 0
    assert said.stdout.startswith("No NVIDIA GPU on this machine")
