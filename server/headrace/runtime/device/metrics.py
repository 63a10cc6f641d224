"""The metrics that every device has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from headrace.runtime.config.schema import ParameterValue, Range

if TYPE_CHECKING:
    from headrace.runtime.device.device import Device

Metric: TypeAlias = Callable[[Mapping[str, str]], ParameterValue]
"""A function that takes options (for example DEVICE_ID) and returns the metric's value."""


def standard_metrics(device: Device) -> dict[str, Metric]:
    """The metrics by name. A device may replace each with its own."""

    def waiting(options: Mapping[str, str]) -> int:
        executor = device.running_executor(options)
        return executor.waiting if executor is not None else 0

    def executing(options: Mapping[str, str]) -> int:
        executor = device.running_executor(options)
        return executor.busy if executor is not None else 0

    return {
        "AVAILABLE_DEVICES": lambda _: device.device_ids(),
        "SUPPORTED_CONFIG_KEYS": lambda _: device.schema.names,
        "FULL_DEVICE_NAME": lambda _: device.full_name or device.name,
        "DEVICE_ARCHITECTURE": lambda _: device.architecture,
        "OPTIMIZATION_CAPABILITIES": lambda _: list(device.capabilities),
        "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda _: Range(1, device.streams(), 1),
        "RANGE_FOR_STREAMS": lambda _: Range(1, device.default_streams(), 1),
        "IMPORT_EXPORT_SUPPORT": lambda _: True,
        "NUMBER_OF_WAITING_INFER_REQUESTS": waiting,
        "NUMBER_OF_EXEC_INFER_REQUESTS": executing,
    }
