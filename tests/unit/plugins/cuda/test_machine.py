"""CUDA says what is missing, each thing told from the others, and which GPUs it would use."""

from __future__ import annotations

import _ctypes
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from elftools.common.exceptions import ELFError

from headrace.plugins.cuda import nvml
from headrace.plugins.cuda.gpu import Gpu, visible
from headrace.plugins.cuda.libraries import explained, lacking, needed
from headrace.plugins.cuda.machine import look, shown_by, without_provider
from headrace.plugins.cuda.nvml import Management
from headrace.runtime.errors import NotInstalled, Unavailable
from tests.support.paper_gpu import GPUS, NoDriver, PaperManagement

PROVIDERS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")


def looked(
    management: Callable[[], Management] = PaperManagement,
    providers: Callable[[], Sequence[str]] = lambda: PROVIDERS,
    packages: Sequence[str] = ("onnxruntime-gpu",),
    lacks: str = "",
    setting: str | None = None,
) -> dict[str, Gpu]:
    gpus, _ = look(management, providers, packages, lambda: lacks, setting)
    return gpus


def no_binding() -> Management:
    raise Unavailable("nvidia-ml-py is not installed")


def no_library() -> Sequence[str]:
    raise ImportError("No module named 'onnxruntime'")


def test_without_its_extra_the_device_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(nvml, "DRIVER", tmp_path / "version")
    with pytest.raises(NotInstalled, match="install headrace with its extra 'cuda'"):
        nvml.Nvml()
    (tmp_path / "version").touch()  # a driver: its user may expect the GPU to be used
    with pytest.raises(Unavailable, match="install headrace with its extra 'cuda'") as caught:
        nvml.Nvml()
    assert not isinstance(caught.value, NotInstalled)


def test_where_nothing_is_missing_gpus_are_numbered_as_they_come() -> None:
    assert looked() == {"0": GPUS[0], "1": GPUS[1]}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"management": no_binding}, "nvidia-ml-py is not installed"),
        ({"management": NoDriver}, "no NVIDIA driver"),
        ({"management": lambda: PaperManagement([])}, "finds no GPU"),
        ({"setting": ""}, "CUDA_VISIBLE_DEVICES= shows none of 2 GPUs"),
        ({"setting": "7"}, "CUDA_VISIBLE_DEVICES=7 shows none of 2 GPUs"),
        ({"providers": no_library}, "ONNX Runtime cannot be imported"),
        (
            {"providers": lambda: ["CPUExecutionProvider"], "packages": ["onnxruntime"]},
            "onnxruntime is for processors.*pip install onnxruntime-gpu",
        ),
        (
            {
                "providers": lambda: ["CPUExecutionProvider"],
                "packages": ["onnxruntime", "onnxruntime-gpu"],
            },
            "installed over onnxruntime-gpu",
        ),
        ({"lacks": "cuDNN is missing"}, "cuDNN is missing"),
    ],
)
def test_what_is_missing_is_told(found: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        looked(**found)


def test_the_first_thing_to_mend_is_told_first() -> None:
    with pytest.raises(Unavailable, match="no NVIDIA driver"):
        looked(management=NoDriver, providers=no_library, lacks="cuDNN is missing")


def test_the_driver_is_let_go_of_if_cuda_cannot_work() -> None:
    management = PaperManagement()
    with pytest.raises(Unavailable):
        looked(management=lambda: management, lacks="cuDNN is missing")
    assert management.closed


def test_a_library_of_somebody_s_own_making_is_told_too() -> None:
    assert "built without" in without_provider([])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (4, "does not let this user query"),
        (9, "installed but not loaded"),
        (12, "no NVIDIA driver: libnvidia-ml.so.1 was not found"),
        (18, "different versions"),
        (999, r"does not answer: Unknown Error \(NVML error 999\)"),
    ],
)
def test_the_drivers_errors_are_told_apart(code: int, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        raise Unavailable(nvml.reason(code, "Unknown Error"))


# -- which GPUs --


def test_a_gpu_that_is_lost_has_its_reason_and_no_memory_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failed(Exception):
        value = 15

    def lost(_: object) -> object:
        raise Failed("GPU is lost")

    binding = SimpleNamespace(
        NVMLError=Failed, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lost
    )
    monkeypatch.setitem(sys.modules, "pynvml", binding)
    management = nvml.Nvml()
    with pytest.raises(Unavailable, match="has lost a GPU"):
        management.taken_bytes("GPU-1")
    assert management.taken_by("GPU-1", 1) is None
    assert management.find("MIG-1") is None


@pytest.mark.parametrize(
    ("setting", "places"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("GPU-bb", [1]),
        ("GPU-", []),
        ("0,9,1", [0]),
        ("0,0", [0]),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_gpus_are_those_that_cuda_documents(setting: str | None, places: list[int]) -> None:
    assert visible(GPUS, setting, lambda _: None) == [GPUS[place] for place in places]


def test_a_part_of_a_gpu_is_one_like_any_other() -> None:
    (part,) = visible(GPUS, "MIG-cccc-3", PaperManagement().find)
    assert part.memory_bytes == 10 * 2**30


class Refused(Exception):
    """NVML's error."""

    value = 4


class DividedGpu:
    """NVML in a container that was given three parts of a GPU, two of one instance, at the places
    1, 2 and 4 of seven."""

    NVMLError = Refused
    NVML_DEVICE_MIG_ENABLE = 1
    INSTANCES: ClassVar = {"MIG-1": 7, "MIG-2": 7, "MIG-4": 9}

    nvmlInit = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: 1)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: "whole")
    nvmlDeviceGetMigMode = staticmethod(lambda whole: [1, 1])
    nvmlDeviceGetMaxMigDeviceCount = staticmethod(lambda whole: 7)
    nvmlDeviceGetGpuInstanceId = staticmethod(INSTANCES.__getitem__)
    nvmlDeviceGetCudaComputeCapability = staticmethod(lambda handle: (9, 0))
    nvmlDeviceGetUUID = staticmethod(lambda handle: handle)
    nvmlDeviceGetName = staticmethod(lambda handle: "NVIDIA H100 MIG 1g.10gb")

    @classmethod
    def nvmlDeviceGetMigDeviceHandleByIndex(cls, whole: str, place: int) -> str:
        part = f"MIG-{place}"
        if part not in cls.INSTANCES:
            raise Refused
        return part

    @staticmethod
    def nvmlDeviceGetMemoryInfo(handle: str) -> SimpleNamespace:
        if handle == "whole":
            raise Refused
        return SimpleNamespace(total=10 * 2**30, used=0)


PARTS = [Gpu(0, f"MIG-{at}", "NVIDIA H100 MIG 1g.10gb", 10 * 2**30, (9, 0)) for at in (1, 4)]


def test_of_a_gpu_that_is_divided_there_is_a_part_of_each_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", DividedGpu)
    assert nvml.Nvml().gpus() == PARTS


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, [*PARTS, GPUS[1]]),
        ("0", PARTS),
        ("1", [GPUS[1]]),
        ("MIG-4,1", [PARTS[1], GPUS[1]]),
        ("MIG-4,MIG-9,1", [PARTS[1]]),
    ],
)
def test_parts_are_shown_beside_whole_gpus(setting: str | None, expected: list[Gpu]) -> None:
    found = {part.uuid: part for part in PARTS}
    assert visible([*PARTS, GPUS[1]], setting, found.get) == expected


def test_a_gpu_says_what_it_computes_in() -> None:
    assert GPUS[0].capabilities == ("FP32", "FP16", "BF16", "FP64")
    assert GPUS[1].capabilities == ("FP32", "FP16", "FP64")
    assert GPUS[1].architecture == "sm_75"


# -- CUDA itself --


class PaperRuntime:
    """CUDA's library, which finds `count` GPUs or answers with `code`."""

    def __init__(self, code: int = 0, count: int = 0) -> None:
        self._code = code
        self._count = count

    def cudaGetDeviceCount(self, found: Any) -> int:
        found._obj.value = self._count
        return self._code

    def cudaRuntimeGetVersion(self, found: Any) -> int:
        found._obj.value = 13000
        return 0

    def cudaDriverGetVersion(self, found: Any) -> int:
        found._obj.value = 12040
        return 0

    @property
    def cudaGetErrorString(self) -> Any:
        names = {100: b"no CUDA-capable device is detected"}

        def describe(code: int) -> bytes:
            return names[code]

        return describe


def test_cuda_itself_says_how_many_gpus_it_shows() -> None:
    assert shown_by(PaperRuntime(count=2)) == 2


def test_a_driver_that_is_older_than_cuda_is_told_with_both_versions() -> None:
    with pytest.raises(Unavailable, match=r"for CUDA 12\.4, and .* needs 13\.0; .* newer driver"):
        shown_by(PaperRuntime(code=35))


def test_cuda_that_does_not_start_is_told_in_its_own_words() -> None:
    with pytest.raises(Unavailable, match=r"no CUDA-capable device is detected \(CUDA error 100\)"):
        shown_by(PaperRuntime(code=100))


# -- libraries --


def loads(*there: str) -> Callable[[str], object]:
    def load(name: str) -> object:
        if name not in there:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return object()

    return load


def test_the_first_library_that_is_not_there_is_told_with_what_it_is() -> None:
    names = ["libcublasLt.so.13", "libcudart.so.13", "libcudnn.so.9"]
    assert lacking(names, loads(*names)) == ""
    assert "the CUDA runtime is missing (libcudart.so.13)" in lacking(names, loads(names[0]))
    assert "cuDNN is missing (libcudnn.so.9)" in lacking(names, loads(*names[:2]))


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("libcublas.so.13", "libcublasLt.so.13: cannot open shared object file: No", "cuBLAS is"),
        ("libcuda.so.1", "libcuda.so.1: cannot open shared object file: No", "--gpus all"),
        (
            "libnvinfer.so.10",
            "libnvinfer.so.10: cannot open shared object file",
            "install TensorRT",
        ),
        ("libodd.so", "libodd.so: cannot open shared object file", "a library is missing (libodd"),
        ("libcudnn.so.9", "version `GLIBC_9' not found", "libcudnn.so.9 cannot be loaded: version"),
    ],
)
def test_the_loaders_complaint_is_explained(name: str, error: str, words: str) -> None:
    assert words in explained(name, error)


def test_what_a_library_needs_is_read_from_its_file() -> None:
    assert "libc.so.6" in needed(Path(_ctypes.__file__))


def test_a_file_that_is_no_library_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(b"!" * 100)
    with pytest.raises(ELFError):
        needed(path)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU, which it would try")
def test_the_tests_of_gpus_say_so_where_there_is_none() -> None:
    root = Path(__file__).parents[4]
    said = subprocess.run(
        ["make", "--no-print-directory", "test-cuda"], cwd=root, capture_output=True, text=True
    )
    assert said.returncode == 0
    assert said.stdout.startswith("No NVIDIA GPU on this machine")
