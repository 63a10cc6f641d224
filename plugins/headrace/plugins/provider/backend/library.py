"""The library with the provider: it is code, so only the server's configuration can name it.

ONNX Runtime keeps a library for the whole process under the name that it was registered with. Some
libraries call their provider by that name.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import onnxruntime
from onnxruntime.capi import _pybind_state as binding

from headrace.plugins.cpu.backend import failures
from headrace.runtime.errors import NotInstalled, Unavailable

_log = logging.getLogger(__name__)

_FOLDERS: Final = re.compile(r"(?<![\w.])/(?:[^\s/:]+/)+")
_PATH: Final = "library_path"
"""What ONNX Runtime calls a library's path in the metadata of what the library offers."""


def from_package(package: str) -> tuple[str, str]:
    """The path of the library that a Python package has, and the provider's name; the name is empty
    if the package does not tell it.

    Raises:
        NotInstalled: there is no such package.
        Unavailable: the package has no such library.
    """
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"the Python package {error.name} is not installed; install it with pip, or name the "
            "library's file"
        ) from error
    except Exception as error:
        raise _unusable(f"the Python package {package} cannot be imported", error) from error
    if not hasattr(module, "get_library_path"):
        raise Unavailable(
            f"the Python package {package} has no function get_library_path(); name the library's "
            "file"
        )
    try:
        named = getattr(module, "get_ep_name", str)()
        return str(module.get_library_path()), str(named)
    except Exception as error:
        raise _unusable(f"the Python package {package} has no library", error) from error


def offered(path: str, name: str, fallback: str) -> Sequence[Any]:
    """What the library offers: a provider on one device each, as ONNX Runtime describes it.

    Args:
        name: the provider's name; empty if the library has only one.
        fallback: the name to register the library with if the provider's is not known.

    Raises:
        Unavailable: the library cannot be loaded, offers nothing here, or has several providers or
            others than the one that is named.
    """
    library, registered = PurePosixPath(path).name, name or fallback
    found = _of(path)
    if not found:
        try:
            onnxruntime.register_execution_provider_library(registered, path)
        except Exception as error:
            raise _unusable(f"ONNX Runtime cannot load {library}", error) from error
        found = _of(path)
    if not found:
        onnxruntime.unregister_execution_provider_library(registered)
        seen = ", ".join(_hardware(each) for each in binding.get_hardware_devices())
        raise Unavailable(
            f"{library} offers no device here. ONNX Runtime sees this hardware: {seen}. Install "
            "the driver, and see in the provider's documents what it needs; in a container, pass "
            "the device on"
        )
    names = dict.fromkeys(each.ep_name for each in found)
    chosen = name or (registered if registered in names else next(iter(names)))
    if chosen not in names or (not name and len(names) > 1):
        raise Unavailable(
            f"{library} has the providers {', '.join(names)}; name one of them as ep in the "
            "device's table"
        )
    return [each for each in found if each.ep_name == chosen]


def _unusable(what: str, error: Exception) -> Unavailable:
    """What clients see of the error, without folders; the log has them."""
    _log.error("%s: %s", what, error)
    return Unavailable(f"{what}: {_FOLDERS.sub('', failures.readable(error))}")


def full_name(offer: Any) -> str:
    """The device's and the provider's names."""
    version = offer.ep_metadata.get("version", "")
    return f"{_hardware(offer.device)}, {offer.ep_name} {version} of {offer.ep_vendor}"


def device_type(offer: Any) -> str:
    """The metric DEVICE_TYPE. A provider's processor is only what an accelerator would do."""
    kind = offer.device.type.name
    if kind == "GPU":
        return "DISCRETE" if offer.device.metadata.get("Discrete") == "1" else "INTEGRATED"
    return "EMULATED" if kind == "CPU" else "INTEGRATED"


def _of(path: str) -> list[Any]:
    return [each for each in binding.get_ep_devices() if each.ep_metadata.get(_PATH) == path]


def _hardware(device: Any) -> str:
    maker = device.vendor or f"{device.vendor_id:#06x}"
    number = f" {device.device_id:#06x}" if device.device_id else ""
    return str(device.metadata.get("Description") or f"{maker} {device.type.name}{number}")
