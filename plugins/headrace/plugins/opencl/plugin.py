"""The device OPENCL: its name, its capabilities, and how it compiles a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

import numpy as np
import onnx_ir as ir

from headrace.plugins.opencl.backend.devices import OpenClDevice
from headrace.plugins.opencl.backend.failures import run_failure
from headrace.plugins.opencl.backend.kernel_folder import KernelFolder
from headrace.plugins.opencl.backend.thread import BackendThread
from headrace.plugins.opencl.claims.trial import why_not
from headrace.plugins.opencl.config import JIT_CACHE_CAPACITY, SCHEMA
from headrace.plugins.opencl.executable_network import OpenClNetwork
from headrace.plugins.opencl.running.session import OpenClSession
from headrace.plugins.opencl.support import LayerSupport
from headrace.plugins.opencl.transformations import TRANSFORMATIONS
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import DEVICE_ID
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.services import Services
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.index_bounds import IndexBounds
from headrace.runtime.network.network import Network, Port
from headrace.runtime.transform.transform import Transformation
from headrace.runtime.transform.trials import Trials

_WARM_ELEMENTS = 2**28
_HALVES_AND_DOUBLES = {
    "FP16": ir.DataType.FLOAT16,
    "BF16": ir.DataType.BFLOAT16,
    "FP64": ir.DataType.DOUBLE,
}


class OpenClPlugin(CompiledPlugin):
    """Runs tinygrad's kernels on OpenCL devices, one run at a time. DEVICE_ID is a number, and GPUs
    come first.

    Args:
        name, services, config: see `Plugin`.
        kernels: the folder of compiled kernels.

    Raises:
        NotInstalled: there is no OpenCL device, or no driver for it.
        Unavailable: no OpenCL device answers.
    """

    schema = SCHEMA
    architecture = "OpenCL"

    def __init__(
        self, name: str, services: Services, config: Mapping[str, str], kernels: KernelFolder
    ) -> None:
        self._kernels = kernels
        self._backend = BackendThread(kernels)
        devices = self._backend.devices
        default = devices[0]
        self.full_name = default.name
        self.backend_version = f"tinygrad {metadata.version('tinygrad')}, OpenCL {default.driver}"
        self.capabilities = _capabilities(default)
        self._trials = [Trials(self._trial_on(at)) for at in range(len(devices))]
        super().__init__(name, services, config)

    # -- what it says of itself --

    def _device_ids(self) -> list[str]:
        return [str(at) for at in range(len(self._backend.devices))]

    def _default_streams(self) -> int:
        return 1

    def _metrics(self) -> Mapping[str, Metric]:
        return {
            "FULL_DEVICE_NAME": lambda options: self._named(options).name,
            "OPTIMIZATION_CAPABILITIES": lambda options: list(_capabilities(self._named(options))),
            "DEVICE_TYPE": lambda options: self._named(options).kind,
        }

    def _named(self, options: Mapping[str, str]) -> OpenClDevice:
        return self._backend.devices[int(options.get(DEVICE_ID.name) or self._number(self.config))]

    def _number(self, config: Configuration) -> int:
        return int(self.device_id(config))

    # -- networks --

    def _transformations(self, config: Configuration) -> Sequence[Transformation]:
        return TRANSFORMATIONS

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Accepts any functions, because they are inlined."""

    def _support(self, network: Network, config: Configuration) -> Support:
        number = self._number(config)
        types = self._backend.devices[number].types
        return LayerSupport(network.model, types, self._trials[number])

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> OpenClNetwork:
        number = self._number(config)
        example = _example(network.inputs)

        def make() -> OpenClSession:
            capacity = config[JIT_CACHE_CAPACITY]
            session = OpenClSession(network.model, f"CL:{number}", capacity, self._kernels)
            if example is not None and session.can_be_warmed:
                _warm(session, example, token)
            return session

        session = self._backend.run(make, token)
        bounds = IndexBounds(network.model)
        return OpenClNetwork(network, config, self.executor(config), self._backend, session, bounds)

    def _trial_on(self, number: int) -> Callable[[bytes], str | None]:
        return lambda network: self._backend.run(lambda: why_not(network, f"CL:{number}"))


def _warm(session: OpenClSession, example: Mapping[str, np.ndarray], token: CancelToken) -> None:
    """Raises ResourceExhausted if no memory holds what the network computes."""
    try:
        session.warm(example, token)
    except Exception as error:
        failure = run_failure(error, "the network")
        if isinstance(failure, InvalidArgument):
            return  # the example may not suit the network
        if failure is error:
            raise
        raise failure from error


def _capabilities(device: OpenClDevice) -> tuple[str, ...]:
    some = (word for word, dtype in _HALVES_AND_DOUBLES.items() if int(dtype) in device.types)
    return ("FP32", *some, "INT8")


def _example(inputs: Sequence[Port]) -> dict[str, np.ndarray] | None:
    """Arrays of ones for all inputs. None if an input is too large or has no static shape.
    You can divide by ones, and they are valid indices of most axes."""
    example: dict[str, np.ndarray] = {}
    for port in inputs:
        sizes = [size for size in port.shape or () if isinstance(size, int)]
        if port.kind != "tensor" or port.shape is None or len(sizes) < len(port.shape):
            return None
        if np.prod(sizes, dtype=np.int64) > _WARM_ELEMENTS:
            return None
        example[port.name] = np.ones(sizes, port.dtype.numpy())
    return example
