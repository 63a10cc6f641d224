"""TEMPLATE, but for layers that crash the process, hang, come out wrong, or read too far."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.plugins.template.executable_network import TemplateNetwork
from headrace.plugins.template.plugin import TemplatePlugin
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network


class UnsoundNetwork(TemplateNetwork):
    def _infer(self, job: Job) -> None:
        (op_type,) = {node.op_type for node in self.network.nodes()}
        super()._infer(job)
        changes: dict[str, Any] = {
            "Sin": lambda value: value + 1,
            "Tan": lambda value: value[:-1],
            "Sinh": lambda value: value * np.float32(1.0001),
        }
        if op_type == "Abs":
            os.abort()
        if op_type == "Neg":
            threading.Event().wait()
        if op_type == "Cosh":
            job.backend = [_beyond(value, *job.inputs.values()) for value in job.backend]
        if op_type == "Exp":
            raise RuntimeError("out of order")
        job.backend = [changes.get(op_type, lambda value: value)(value) for value in job.backend]

    def _postprocess(self, job: Job) -> None:
        super()._postprocess(job)
        if {node.op_type for node in self.network.nodes()} == {"Cos"}:
            job.outputs = {name: _double(value) for name, value in job.outputs.items()}


def _double(value: Any) -> Any:
    """The value in another type than its port declares."""
    return value.astype(np.float64)


def _beyond(value: np.ndarray[Any, Any], given: Any) -> np.ndarray[Any, Any]:
    """What lies behind the input, in the form of the output."""
    return (
        np.lib.stride_tricks.as_strided(given, (2 * given.size,))[given.size :]
        .astype(value.dtype)
        .reshape(value.shape)
    )


class UnsoundPlugin(TemplatePlugin):
    def _compile(self, network: Network, config: Configuration, _: CancelToken) -> UnsoundNetwork:
        return UnsoundNetwork(network, config, self)


@plugin_api(1)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return UnsoundPlugin(name, services, config)


@plugin_api(1)
def create_none(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    raise RuntimeError("the driver is missing")


@plugin_api(1)
def create_dead(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    os.abort()
