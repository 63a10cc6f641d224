"""OPENCL: runs networks through tinygrad on GPUs, and on processors that have an OpenCL driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

from headrace.plugins.opencl.backend import environment
from headrace.plugins.opencl.backend.kernel_folder import KernelFolder
from headrace.runtime.device.api import plugin_api
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import NotInstalled, Unavailable


@plugin_api(1, isolated=True)
def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    """The function that the entry point names.

    Only one thread of a process may use tinygrad, and tinygrad reads its settings from the
    environment when it is imported. So this function runs in the device's own process, and tinygrad
    is imported only there.

    Raises:
        NotInstalled: tinygrad is not installed, or there is no OpenCL device, or no driver for it.
        Unavailable: tinygrad cannot be imported, or no OpenCL device answers.
    """
    if find_spec("tinygrad") is None:
        raise NotInstalled("tinygrad is not installed; install headrace with its extra 'opencl'")
    state = None if services.folder is None else services.folder / name
    kernels = KernelFolder(environment.kernel_folder(os.environ, state, os.getuid()))
    kernels.bound()
    os.environ.update(environment.settings(os.environ, kernels.path))
    try:
        from headrace.plugins.opencl.plugin import OpenClPlugin
    except ImportError as error:
        raise Unavailable(f"tinygrad cannot be imported: {error}") from error
    return OpenClPlugin(name, services, config, kernels)
