"""Finds the OpenCL devices of this machine and their properties. For the backend's thread.

tinygrad takes only the devices of the first platform, and that platform may have no device here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

from tinygrad.device import Device
from tinygrad.nn.onnx import OnnxDataType
from tinygrad.runtime.autogen import opencl as cl
from tinygrad.runtime.ops_cl import CLDevice, check
from tinygrad.tensor import Tensor

_NO_PLATFORM = -1001  # CL_PLATFORM_NOT_FOUND_KHR, from the loader of drivers


class NoDevice(Exception):
    """No OpenCL driver is installed, or none of them has a device."""


class OpenClDevice(NamedTuple):
    """One device.

    Attributes:
        kind: the type by which AUTO ranks the device: DISCRETE, INTEGRATED or EMULATED.
        types: ONNX's numbers of the types that its kernels compute in.
    """

    name: str
    driver: str
    kind: str
    types: frozenset[int]


def find() -> list[OpenClDevice]:
    """Finds all devices, GPUs first. From then on, tinygrad has them in this order, as ``CL:0`` and
    so on.

    Raises:
        NoDevice: there is no device.
        RuntimeError: a driver fails, or a device does not compute.
    """
    devices = sorted(_devices(), key=lambda device: _kind(device) == "EMULATED")
    if not devices:
        raise NoDevice("no platform has a device")
    CLDevice.device_ids = (cl.cl_device_id * len(devices))(*devices)
    working = []
    for at, device in enumerate(devices):
        opened: Any = Device[f"CL:{at}"]
        # A driver may be installed and compile nothing.
        Tensor([1.0], device=f"CL:{at}").add(1).tolist()
        known = opened.renderer.supported_dtypes()
        types = frozenset(int(dtype) for dtype in OnnxDataType if dtype.to_dtype() in known)
        name, driver = opened.device_name.strip(), opened.driver_version.strip()
        working.append(OpenClDevice(name, driver, _kind(device), types))
    return working


def _devices() -> Iterator[Any]:
    count = ctypes.c_uint32()
    try:
        status = cl.clGetPlatformIDs(0, None, count)
    except AttributeError as error:  # the library that loads drivers
        raise NoDevice(str(error)) from error
    if status == _NO_PLATFORM:
        return
    check(status)
    platforms = (cl.cl_platform_id * count.value)()
    check(cl.clGetPlatformIDs(count.value, platforms, None))
    for platform in platforms:
        if cl.clGetDeviceIDs(platform, cl.CL_DEVICE_TYPE_ALL, 0, None, count) != 0:
            continue
        devices = (cl.cl_device_id * count.value)()
        check(cl.clGetDeviceIDs(platform, cl.CL_DEVICE_TYPE_ALL, count.value, devices, None))
        yield from devices


def _kind(device: Any) -> str:
    if not _number(device, cl.CL_DEVICE_TYPE) & cl.CL_DEVICE_TYPE_GPU:
        return (
            "EMULATED" if _number(device, cl.CL_DEVICE_TYPE) & cl.CL_DEVICE_TYPE_CPU else "DISCRETE"
        )
    return "INTEGRATED" if _number(device, cl.CL_DEVICE_HOST_UNIFIED_MEMORY) else "DISCRETE"


def _number(device: Any, parameter: int) -> int:
    value = ctypes.c_uint64(0)  # cl_bitfield, or cl_bool in its lower half
    check(cl.clGetDeviceInfo(device, parameter, ctypes.sizeof(value), ctypes.byref(value), None))
    return value.value
