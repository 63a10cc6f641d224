"""Checks the devices and their drivers. It starts the devices as a server would."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headrace.runtime.core import Core
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import HeadraceError
from headrace.server.doctor.finding import Finding, ok, problem, warning
from headrace.server.plugins import plugin_sources
from headrace.server.settings.settings import Settings

_ICDS: Final = "etc/OpenCL/vendors"
_KEY: Final = bytes(32)


def check_devices(settings: Settings) -> Iterator[Finding]:
    """Starts the devices of the settings, and says why others cannot be used."""
    try:
        core = Core(
            plugin_sources(settings), blob_key=_KEY, isolate_devices=settings.isolate_devices
        )
    except HeadraceError as error:
        yield problem("devices", str(error), f"correct {error.field or 'the settings'}")
        return
    try:
        yield from _devices(core, settings)
    finally:
        core.stop()


def _devices(core: Core, settings: Settings) -> Iterator[Finding]:
    missing, reasons = core.plugins.not_installed(), core.plugins.reasons(full=True)
    plugins = core.plugins.plugins()
    for name in core.plugins.names():
        plugin = plugins.get(name)
        reason = reasons.get(name, "")
        version = ""
        if plugin is not None:
            try:
                version = plugin.full_name or name
                if ids := ", ".join(filter(None, plugin.device_ids())):
                    version += f" ({ids})"
            except HeadraceError as error:
                reason = str(error.__cause__ or error)
            event = core.states.get(name)
            if event is not None and event.state is not DeviceState.UP:
                reason = reason or event.reason or event.state.value
        if not reason:
            yield ok("devices", f"{name} can be used: {version}")
        elif name in settings.devices:
            remedy = f"mend that, or leave {name} out of the setting devices"
            yield problem(
                "devices", f"{name}, which the settings name, cannot be used: {reason}", remedy
            )
        elif name in missing:
            yield ok("devices", f"{name} is not used: {reason}")
        else:
            yield warning(
                "devices",
                f"{name} cannot be used: {reason}",
                "mend that, or choose the devices that you want with --devices",
            )


def check_opencl(root: Path = Path("/")) -> Iterator[Finding]:
    """Looks for OpenCL's drivers, if the package that uses them is installed.

    Args:
        root: where /etc and /dev are.
    """
    if find_spec("tinygrad") is None:
        return
    folder = Path(os.environ.get("OCL_ICD_VENDORS") or root / _ICDS)
    files = sorted(folder.glob("*.icd")) if folder.is_dir() else []
    if not files:
        yield warning(
            "opencl",
            f"there is no OpenCL driver in {folder}",
            "install the driver of your GPU, or pocl-opencl-icd for processors",
        )
    for file in files:
        library = file.read_text(encoding="utf-8", errors="replace").strip()
        why_not = _why_not_loaded(library)
        if why_not is None:
            yield ok("opencl", f"{file.name} leads to {library}")
        else:
            yield warning(
                "opencl",
                f"{file.name} leads to {library}, which cannot be loaded: {why_not}",
                "install that driver again, or remove the file",
            )


def check_gpus(root: Path = Path("/")) -> Iterator[Finding]:
    """Looks whether this user may use the GPUs of the machine. Arguments as `check_opencl`."""
    nodes = sorted((root / "dev/dri").glob("renderD*")) if (root / "dev/dri").is_dir() else []
    for node in nodes:
        if os.access(node, os.R_OK | os.W_OK):
            yield ok("gpus", f"{node} can be used")
        else:
            yield warning(
                "gpus",
                f"this user may not use {node}, which Intel's and AMD's drivers need",
                f"add the server's user to the group of {node}, usually render",
            )
    if not (root / "dev/nvidiactl").exists():
        return
    why_not = _why_not_loaded("libcuda.so.1")
    version = root / "proc/driver/nvidia/version"
    if why_not is not None:
        yield warning(
            "gpus",
            f"there is an NVIDIA GPU, but its driver cannot be loaded: {why_not}",
            "install the NVIDIA driver; in a container, run it with the NVIDIA runtime",
        )
    elif version.is_file():
        yield ok("gpus", f"NVIDIA driver: {version.read_text().splitlines()[0].strip()}")


def _why_not_loaded(library: str) -> str | None:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None
