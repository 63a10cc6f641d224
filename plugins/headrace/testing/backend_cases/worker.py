"""A process that runs cases on a device, one at a time."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.plugin_source import PluginSource, factory_source, installed_plugins
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import HeadraceError, UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest, NetworkOptions
from headrace.testing.backend_cases.cases import BackendCase
from headrace.testing.backend_cases.outcome import CaseOutcome, Result, difference, same_form
from headrace.testing.infer_request import InferRequest

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_REASON_LENGTH = 120


@dataclass(frozen=True, slots=True)
class DeviceUnderTest:
    """The device that the cases run on.

    Attributes:
        name: as a client writes it: ``CPU``, ``CPU.0``, ``HETERO:OPENVINO,CPU``.
        config: the configuration of every load and query.
        factory: ``package.module:create_plugin`` of a device that no entry point names.
        settings: the settings of the device itself, as in a server's configuration file.
    """

    name: str
    config: Mapping[str, str] = field(default_factory=dict)
    factory: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def sources(self) -> list[PluginSource]:
        """The plugins that it needs; a virtual device without a list may need all."""
        device = DeviceName.parse(self.name)
        known = installed_plugins()
        if self.factory:
            known[device.type] = factory_source(device.type, self.factory)
        if device.type in known:
            known[device.type] = known[device.type].configured(device.type, self.settings)
        if device.is_virtual and not device.members:
            return list(known.values())
        return [known[dtype] for dtype in _types(device) if dtype in known]


def _types(device: DeviceName) -> list[str]:
    inner = [name for member in device.members for name in _types(member.device)]
    return list(dict.fromkeys([device.type, *inner]))


def run_worker(device: DeviceUnderTest, connection: Connection) -> None:
    """Answers each case that arrives with whether the device claims it, then with its result.

    First it says ``(device name, backend version, capabilities)``, or the error that kept the
    device from starting. Ends when the other end of the connection closes.
    """
    core = Core(device.sources(), blob_key=b"backend cases")
    try:
        name = DeviceName.parse(device.name)
        try:
            plugin = core.plugin(name)
        except HeadraceError as error:
            connection.send(str(error))
            return
        parts = (core.plugin(device_name).backend_version for device_name in name.physical())
        version = plugin.backend_version or ", ".join(parts)
        connection.send((str(name), version, capabilities(core, name)))
        while True:
            case = connection.recv()
            wait_until_up(core, name)
            connection.send(run_case(core, name, device.config, case, connection))
    except (EOFError, BrokenPipeError):  # nobody asks any more
        return
    finally:
        core.stop()


def capabilities(core: Core, name: DeviceName) -> tuple[str, ...]:
    """OPTIMIZATION_CAPABILITIES of all devices that it computes on."""
    found: set[str] = set()
    for device_name in name.physical():
        if not device_name.is_virtual:  # one without a list, as AUTO, chooses later
            options = {"DEVICE_ID": device_name.id} if device_name.id else {}
            known = core.plugin(device_name).get_metric("OPTIMIZATION_CAPABILITIES", options)
            assert isinstance(known, list)
            found.update(known)
    return tuple(sorted(found))


def wait_until_up(core: Core, name: DeviceName) -> None:
    """A device in a process of its own starts again after a case that it crashed at."""
    changed = threading.Event()
    end = core.states.subscribe(lambda _: changed.set())
    try:
        for device in {device_name.type for device_name in name.physical()}:
            while (event := core.states.get(device)) and event.state is not DeviceState.UP:
                changed.wait()
                changed.clear()
    finally:
        end()


def run_case(
    core: Core,
    device: DeviceName,
    config: Mapping[str, str],
    case: BackendCase,
    progress: Connection | None = None,
) -> Result:
    """Queries, loads and infers; sends the query's answer to `progress` before it loads."""
    claimed = False
    try:

        def network() -> Network:  # a new one each time, because a query takes its own apart
            return Network.from_bytes(case.model)

        query = core.query_network(device, config, NetworkOptions(), network).result()
        claimed = not query.unsupported
        if progress is not None:
            progress.send(claimed)
        return _run(core, LoadRequest("case", device, config), network, case, claimed)
    except UnsupportedLayers as error:
        layers = [layer for layer in error.layers if layer.op_type != "Constant"]
        first = (layers or error.layers)[0]
        reason = _class_of(f"{first.op_type}: {first.reason}")
        return Result(case.name, CaseOutcome.REFUSED, claimed, reason, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a device raises is its result
        reason = f"{type(error).__name__}: {_class_of(str(error))}"
        return Result(case.name, CaseOutcome.FAILED, claimed, reason, str(error))


def _run(
    core: Core,
    request: LoadRequest,
    network: Callable[[], Network],
    case: BackendCase,
    claimed: bool,
) -> Result:
    entry = core.load_network(request, network).result()
    try:
        assert entry.executable is not None
        for inputs, expected in case.data_sets:
            outputs = InferRequest(entry.executable).infer(inputs)
            why = difference(outputs, expected, case.rtol, case.atol)
            if why is not None:
                if case.random and same_form(outputs, expected):
                    reason = "the numbers are the backend's own"
                    return Result(case.name, CaseOutcome.RANDOM, claimed, reason, why[1])
                return Result(case.name, CaseOutcome.WRONG, claimed, *why)
        return Result(case.name, CaseOutcome.PASSED, claimed)
    finally:
        core.unload_network(request.name).result()


def _class_of(text: str) -> str:
    """The text without names and numbers of one case, so that alike cases have one reason."""
    first = text.partition("\n")[0].partition("; ")[0]
    return _QUOTED.sub("…", first).strip()[:_REASON_LENGTH]
