"""What `headrace doctor` says of a machine: each check with a good and with a bad example."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterable
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.errors import Unavailable
from headrace.runtime.system.memory_limit import MemoryUse
from headrace.server.doctor import devices, limits, packages, places, running
from headrace.server.doctor.finding import Finding, State
from headrace.server.settings.option import GIB, MIB
from headrace.server.settings.plugin_settings import PluginSettings
from headrace.server.settings.settings import Settings


def only(found: Iterable[Finding]) -> tuple[State, str]:
    """The state of the one finding, and its text. Every finding that is not fine has a remedy."""
    (finding,) = found
    assert (finding.state is State.OK) == (not finding.remedy)
    return finding.state, f"{finding.message}; {finding.remedy}"


@pytest.mark.parametrize(("newest", "state"), [((3, 99), "ok"), ((3, 10), "warning")])
def test_python(newest: tuple[int, int], state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_NEWEST", newest)
    assert only(packages.check_python())[0] == state


REQUIREMENTS = (
    "grpcio<2,>=1.76",
    "typer<1,>=0.16; extra == 'cli'",
    "onnx>=1.18; extra == 'server'",
    "headrace[cli]; extra == 'server'",
    "openvino<2027,>=2026.0; extra == 'openvino'",
    "pytest>=8; extra == 'dev'",
)
INSTALLED = {"grpcio": "1.80.0", "typer": "0.20.0", "onnx": "1.19.0", "openvino": "2026.1.0"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, None),
        ({"grpcio": "1.70.0"}, "grpcio 1.70.0 is not supported: it must be <2,>=1.76; run: pip"),
        ({"onnx": None}, "onnx is not installed; run: pip install 'headrace[server]'"),
        ({"openvino": "2025.4.0"}, "openvino 2025.4.0 is not supported"),
        ({"openvino": None}, None),
    ],
)
def test_packages(
    changed: dict[str, str | None], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = INSTALLED | changed

    def installed(name: str) -> str:
        if (version := there.get(name)) is None:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "requires", lambda _: REQUIREMENTS)
    monkeypatch.setattr(metadata, "version", installed)
    *bad, good = packages.check_packages()
    assert good.state is State.OK
    if expected is None:
        assert bad == []
    else:
        state, text = only(bad)
        assert state is State.PROBLEM
        assert expected in text


def test_the_packages_of_this_installation_are_supported() -> None:
    assert [each.state for each in packages.check_packages()] == [State.OK]


def source(name: str, error: Exception) -> PluginSource:
    """A plugin whose backend the machine lacks."""

    def load() -> Any:
        raise error

    return PluginSource(name, load)


def test_a_device_that_does_not_start_is_named_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = source("BROKEN", Unavailable("there is no driver"))
    monkeypatch.setattr(devices, "plugin_sources", lambda _: [broken])
    state, text = only(devices.check_devices(Settings()))
    assert state is State.WARNING
    assert "BROKEN cannot be used: " in text
    state, text = only(devices.check_devices(Settings(devices=("BROKEN",))))
    assert state is State.PROBLEM
    assert "leave BROKEN out" in text


def test_devices_that_can_be_used_and_a_wrong_key() -> None:
    settings = Settings(devices=("TEMPLATE",))
    state, text = only(devices.check_devices(settings))
    assert state is State.OK
    assert text.startswith("TEMPLATE can be used")
    wrong = PluginSettings("TEMPLATE", config={"NUM_STREAM": "2"})
    state, text = only(devices.check_devices(Settings(devices=("TEMPLATE",), plugins=(wrong,))))
    assert state is State.PROBLEM
    assert "NUM_STREAMS" in text
    state, text = only(devices.check_devices(Settings(devices=("TEMPLAT",))))
    assert state is State.PROBLEM
    assert "TEMPLATE" in text


def test_opencl_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    monkeypatch.setattr(devices, "find_spec", lambda _: object())
    state, text = only(devices.check_opencl(tmp_path))
    assert state is State.WARNING
    assert "there is no OpenCL driver" in text
    vendors = tmp_path / "etc/OpenCL/vendors"
    vendors.mkdir(parents=True)
    (vendors / "some.icd").write_text("libsome.so\n")
    monkeypatch.setattr(devices, "_why_not_loaded", lambda _: None)
    assert only(devices.check_opencl(tmp_path))[0] is State.OK
    monkeypatch.setattr(devices, "_why_not_loaded", lambda name: f"{name}: no such file")
    state, text = only(devices.check_opencl(tmp_path))
    assert state is State.WARNING
    assert "libsome.so: no such file" in text
    monkeypatch.setattr(devices, "find_spec", lambda _: None)
    assert list(devices.check_opencl(tmp_path)) == []


def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(devices.check_gpus(tmp_path)) == []
    node = tmp_path / "dev/dri/renderD128"
    node.parent.mkdir(parents=True)
    node.touch()
    assert only(devices.check_gpus(tmp_path))[0] is State.OK
    monkeypatch.setattr(os, "access", lambda *_: False)
    state, text = only(devices.check_gpus(tmp_path))
    assert state is State.WARNING
    assert "group" in text
    node.unlink()
    (tmp_path / "dev/nvidiactl").touch()
    monkeypatch.setattr(devices, "_why_not_loaded", lambda _: "not found")
    state, text = only(devices.check_gpus(tmp_path))
    assert state is State.WARNING
    assert "NVIDIA" in text
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 580.1\n")
    monkeypatch.setattr(devices, "_why_not_loaded", lambda _: None)
    state, text = only(devices.check_gpus(tmp_path))
    assert (state, "580.1" in text) == (State.OK, True)


@pytest.mark.parametrize(("limit", "state"), [(1024, "warning"), (4096, "ok"), (-1, "ok")])
def test_open_files(limit: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    found, text = only(limits.check_files(Settings()))
    assert found == state
    assert "3328" in text


@pytest.mark.parametrize(
    ("memory", "settings", "state", "named"),
    [
        (None, {}, "warning", "does not tell"),
        (MemoryUse(GIB, 8 * GIB), {}, "ok", "8 GiB, of which 7 GiB are free"),
        (MemoryUse(0, GIB // 2), {}, "warning", "300 MiB"),
        (MemoryUse(0, 2 * GIB), {"max_state_bytes": 4 * GIB}, "warning", "max_state_bytes 4 GiB"),
        (
            MemoryUse(0, 4 * GIB),
            {"max_model_bytes": 6 * GIB},
            "warning",
            "--max-model-bytes to 2 GiB",
        ),
    ],
)
def test_memory(
    memory: MemoryUse | None,
    settings: dict[str, int],
    state: str,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "memory_limit", lambda: memory)
    found = list(limits.check_memory(Settings(**settings)))  # type: ignore[arg-type]
    assert found[0].state == state
    assert any(named in f"{each.message} {each.remedy}" for each in found)


def has_disk(monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=total, free=free))


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(limits.check_shared_memory(Settings(), tmp_path)) == []
    allowed = Settings(allow_client_shared_memory=True)
    has_disk(monkeypatch, 2 * GIB, GIB)
    assert only(limits.check_shared_memory(allowed, tmp_path))[0] is State.OK
    has_disk(monkeypatch, 64 * MIB, MIB)
    state, text = only(limits.check_shared_memory(allowed, tmp_path))
    assert (state, "--shm-size 1024m" in text) == (State.WARNING, True)
    assert only(limits.check_shared_memory(allowed, tmp_path / "none"))[0] is State.WARNING


def test_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = limits.check_temporary_files
    has_disk(monkeypatch, 9 * GIB, 3 * GIB)
    assert only(check(Settings(), tmp_path))[0] is State.OK
    has_disk(monkeypatch, 9 * GIB, GIB)
    state, text = only(check(Settings(), tmp_path))
    assert (state, "TMPDIR" in text) == (State.WARNING, True)
    assert only(check(Settings(), tmp_path / "none"))[0] is State.WARNING


@pytest.mark.parametrize(
    ("quota", "asked", "state", "named"),
    [
        ("max 100000", {}, "ok", "4 processors"),
        ("200000 100000", {}, "ok", "2 processors can be used, by a quota of 2"),
        ("150000 100000", {}, "warning", "the quota is 1.5"),
        ("200000 100000", {"OMP_NUM_THREADS": "8"}, "warning", "OMP_NUM_THREADS is 8"),
        ("200000 100000", {"NUM_STREAMS": "3"}, "warning", "CPU.NUM_STREAMS is 3"),
    ],
)
def test_processors(
    quota: str,
    asked: dict[str, str],
    state: str,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota)
    environment = {name: text for name, text in asked.items() if name.isupper() and "OMP" in name}
    plugin = PluginSettings("CPU", config={k: v for k, v in asked.items() if k not in environment})
    settings = Settings(plugins=(plugin,))
    for name in limits._THREADS:
        monkeypatch.setenv(name, environment.get(name, ""))
    found, text = only(limits.check_processors(settings, tmp_path, 4))
    assert (found, named in text) == (state, True), text


def test_root_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert only(places.check_user())[0] is State.WARNING
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert list(places.check_user()) == []


def test_a_clock_that_is_behind_or_differs() -> None:
    here = Path(__file__)
    assert list(running.check_own_clock(here, lambda: here.stat().st_mtime + 1)) == []
    state, text = only(running.check_own_clock(here, lambda: 0.0))
    assert (state, "NTP" in text) == (State.PROBLEM, True)
    assert only(running.check_clock(0.4))[0] is State.OK
    assert "90 s behind" in only(running.check_clock(-90.0))[1]
    assert only(running.check_clock(None))[0] is State.WARNING
