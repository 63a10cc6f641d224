"""Plugins by device name: what starts, what does not, and why."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.runtime.device.api import PLUGIN_API_VERSION, Isolated, plugin_api
from headrace.runtime.device.compiled_plugin import CompiledPlugin
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource, factory_source, installed_plugins
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceEvent, DeviceState, DeviceStates
from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    InvalidArgument,
    NotFound,
    NotInstalled,
    Unavailable,
)
from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.timer import Timer
from headrace.runtime.loading import plugin_registry
from headrace.runtime.loading.plugin_registry import PluginRegistry
from headrace.runtime.metrics.counters import Counters


class FakePlugin(CompiledPlugin):
    """Computes nothing; is only found, configured and closed."""

    closed = False

    def _support(self, *_: Any) -> Any:
        raise NotImplementedError

    def _compile(self, *_: Any) -> Any:
        raise NotImplementedError

    def _device_ids(self) -> list[str]:
        return ["0", "1"]

    def _close(self) -> None:
        self.closed = True


@plugin_api(PLUGIN_API_VERSION)
def create(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return FakePlugin(name, services, config)


@pytest.fixture
def services() -> Iterator[Services]:
    timer, registry = Timer(), PluginRegistry()
    yield Services(ExecutorManager(), timer, Counters(), DeviceStates(), registry)
    timer.stop()


def source(device: str, factory: Any = create, **config: str) -> PluginSource:
    return PluginSource(device, lambda: factory, config)


def started(services: Services, *sources: PluginSource) -> PluginRegistry:
    registry = PluginRegistry()
    registry.start(sources, services)
    return registry


def test_a_plugin_is_made_with_its_name_and_its_settings(services: Services) -> None:
    registry = started(services, source("ONE", NUM_STREAMS="3"), source("TWO"))
    assert registry.plugin("ONE").name == "ONE"
    assert registry.plugin("ONE").get_config("NUM_STREAMS") == 3
    assert registry.names() == ["ONE", "TWO"]
    assert list(registry.plugins()) == ["ONE", "TWO"]
    assert registry.reasons() == {}
    assert services.states.current()["ONE"].state is DeviceState.UP


_BUG = "an internal error; see the server's log"


def raises(error: BaseException) -> Callable[..., Plugin]:
    @plugin_api(PLUGIN_API_VERSION)
    def create(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
        raise error

    return create


def undeclared(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return create(name, services, config)


@plugin_api(PLUGIN_API_VERSION + 1)
def newer(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return create(name, services, config)


@plugin_api(PLUGIN_API_VERSION)  # type: ignore[type-var]
def no_plugin(name: str, services: Services, config: Mapping[str, str]) -> object:
    return object()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (source("BAD", raises(OSError("no driver"))), "OSError: no driver"),
        (source("BAD", undeclared), "written for plugin API None"),
        (source("BAD", newer), f"written for plugin API {PLUGIN_API_VERSION + 1}"),
        (source("BAD", no_plugin), "returned object, not a Plugin"),
        (source("bad"), "'bad' is not a device name"),
        (source("BAD:X"), "is not a device name"),
    ],
)
def test_a_plugin_that_does_not_start_keeps_its_reason_and_the_others_start(
    services: Services, broken: PluginSource, reason: str
) -> None:
    registry = started(services, broken, source("GOOD"))
    assert registry.plugin("GOOD").name == "GOOD"
    assert list(registry.plugins()) == ["GOOD"]
    assert reason in registry.reasons(full=True)[broken.device]
    event = services.states.current()[broken.device]
    assert event == DeviceEvent(broken.device, DeviceState.DOWN, _BUG)
    with pytest.raises(Unavailable) as caught:
        registry.plugin(broken.device)
    assert str(caught.value) == f"device {broken.device} did not start: {_BUG}"
    assert registry.reasons() == {broken.device: _BUG}


@pytest.mark.parametrize(
    ("broken", "key", "message"),
    [
        (
            source("BAD", NUM_STREAM="1"),
            "NUM_STREAM",
            "unknown configuration key 'NUM_STREAM'; did you mean 'NUM_STREAMS'?",
        ),
        (source("BAD", NUM_STREAMS="-1"), "NUM_STREAMS", "NUM_STREAMS cannot be '-1'; allowed"),
        (source("HETERO", ISOLATION="PROCESS"), "ISOLATION", "set ISOLATION for the devices"),
    ],
)
def test_a_mistake_in_a_plugins_configuration_ends_the_start(
    services: Services, broken: PluginSource, key: str, message: str
) -> None:
    with pytest.raises(HeadraceError, match=re.escape(message)) as caught:
        started(services, broken, source("GOOD"))
    assert caught.value.field == f"plugins.{broken.device}.config['{key}']"


@pytest.mark.parametrize(
    ("usual", "asked", "isolate", "expected"),
    [
        (False, None, False, False),
        (False, None, True, True),
        (False, "PROCESS", False, True),
        (False, "NONE", False, False),
        ("by default", None, False, True),
        ("by default", "NONE", False, False),
        ("by default", "PROCESS", True, True),
        (True, None, False, True),
        ("in part", None, True, False),
        ("in part", "NONE", False, False),
        ("in part", "PROCESS", False, False),
    ],
)
def test_where_a_device_lives_is_its_own_choice_unless_the_operator_says(
    usual: Isolated, asked: str | None, isolate: bool, expected: bool
) -> None:
    declared = plugin_api(PLUGIN_API_VERSION, isolated=usual)(lambda *_: _never())
    config = {} if asked is None else {"ISOLATION": asked}
    source = PluginSource("DEVICE", lambda: declared, config, "module:function")
    assert plugin_registry._isolated(source, isolate) is expected


def _never() -> Plugin:
    raise AssertionError("a plugin is made")


def test_no_device_may_stay_in_a_server_that_isolates_all_of_them(services: Services) -> None:
    with pytest.raises(InvalidArgument, match="isolate_devices puts every device") as caught:
        PluginRegistry().start([source("BAD", ISOLATION="NONE")], services, isolate=True)
    assert caught.value.field == "plugins.BAD.config['ISOLATION']"


def test_what_a_machine_lacks_for_a_configuration_is_no_mistake_in_it(services: Services) -> None:
    lacking = FailedPrecondition("TensorRT cannot be used", field="config['EXECUTION_PROVIDER']")
    registry = started(services, source("BAD", raises(lacking), EXECUTION_PROVIDER="TENSORRT"))
    assert registry.reasons() == {"BAD": "TensorRT cannot be used"}


def test_a_plugin_whose_import_fails_keeps_its_reason(services: Services) -> None:
    def load() -> Any:
        raise ModuleNotFoundError("No module named 'driver'")

    registry = started(services, PluginSource("BAD", load))
    cause = "ModuleNotFoundError: No module named 'driver'"
    assert registry.reasons(full=True) == {"BAD": cause}


@pytest.mark.parametrize(
    ("error", "level", "reason"),
    [
        (NotInstalled("its extra is not there"), "DEBUG", "its extra is not there"),
        (Unavailable("the machine has no such thing"), "INFO", "the machine has no such thing"),
        (OSError("the disk is full"), "WARNING", "OSError: the disk is full"),
    ],
)
def test_a_plugin_that_says_what_is_missing_is_no_event_to_be_warned_of(
    services: Services,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    level: str,
    reason: str,
) -> None:
    @plugin_api(PLUGIN_API_VERSION)
    def missing(*_: object) -> Plugin:
        raise error

    registry = PluginRegistry()
    with caplog.at_level("DEBUG"):
        registry.start([source("GPU", missing)], services)
    (record,) = caplog.records
    assert (record.levelname, registry.reasons(full=True)) == (level, {"GPU": reason})


def test_a_device_that_the_operator_named_is_missed_if_it_is_not_installed(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    @plugin_api(PLUGIN_API_VERSION)
    def missing(*_: object) -> Plugin:
        raise NotInstalled("its extra is not there")

    unnamed = started(services, source("GPU", missing))
    assert (set(unnamed.not_installed()), unnamed.in_metrics()) == ({"GPU"}, [])
    assert not caplog.records
    named = started(services, replace(source("GPU", missing), named=True))
    assert not named.not_installed()
    assert named.in_metrics() == [("GPU", "GPU")]
    (record,) = caplog.records
    assert record.levelname == "WARNING"


def test_an_unknown_device_is_not_found_with_a_suggestion(services: Services) -> None:
    registry = started(services, source("GPU"), source("BAD", undeclared))
    with pytest.raises(NotFound, match="unknown device 'GPV'; did you mean 'GPU'") as caught:
        registry.plugin("GPV")
    assert caught.value.field == "device"


class LatePlugin(FakePlugin):
    """Finds its devices when it is asked for them; here it finds that it cannot."""

    asked = 0

    def _device_ids(self) -> list[str]:
        self.asked += 1
        raise Unavailable("the driver is missing")


@plugin_api(PLUGIN_API_VERSION)
def create_late(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
    return LatePlugin(name, services, config)


def test_devices_are_asked_for_when_their_type_is_looked_up(services: Services) -> None:
    registry = started(services, source("GPU"), source("LATE", create_late))
    late = registry.plugin("LATE")
    assert isinstance(late, LatePlugin)
    available = registry.available()
    assert list(available) == ["GPU", "LATE"]
    assert "LATE" in available
    assert available["GPU"] == ["0", "1"]
    assert late.asked == 0
    assert available["LATE"] == []  # it is for the load to say why
    assert late.asked == 1
    with pytest.raises(KeyError):
        available["OTHER"]


def test_every_device_type_has_its_available_devices(services: Services) -> None:
    registry = started(services, source("GPU"), source("BAD", undeclared), source("BAD2", newer))
    available = registry.available()
    assert available == {"GPU": ["0", "1"], "BAD": [], "BAD2": []}
    available["BAD"].append("mine")
    assert registry.available()["BAD2"] == []


def test_close_closes_every_plugin_though_one_fails_to(services: Services) -> None:
    class Stuck(FakePlugin):
        def _close(self) -> None:
            raise OSError("device lost")

    @plugin_api(PLUGIN_API_VERSION)
    def stuck(name: str, services: Services, config: Mapping[str, str]) -> Plugin:
        return Stuck(name, services, config)

    registry = started(services, source("STUCK", stuck), source("GOOD"))
    good = registry.plugin("GOOD")
    registry.close()
    assert isinstance(good, FakePlugin)
    assert good.closed


def test_installed_plugins_are_found_through_entry_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = importlib.metadata.EntryPoint("MINE", f"{__name__}:create", "headrace.plugins")

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        assert group == "headrace.plugins"
        return [point]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    found = installed_plugins()
    assert found["MINE"].device == "MINE"
    assert getattr(found["MINE"].load(), "headrace_plugin_api", None) == PLUGIN_API_VERSION


def test_a_plugin_can_have_another_name_and_other_settings(services: Services) -> None:
    renamed = source("GPU", NUM_STREAMS="1", QUEUE_CAPACITY="7").configured(
        "CARD", {"NUM_STREAMS": "2"}
    )
    plugin = started(services, renamed).plugin("CARD")
    assert (plugin.get_config("NUM_STREAMS"), plugin.get_config("QUEUE_CAPACITY")) == (2, 7)


@pytest.mark.parametrize("path", ["a_plugin_module:create_plugin", "a_plugin_module"])
def test_the_server_can_name_a_factory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, services: Services, path: str
) -> None:
    module = types.ModuleType("a_plugin_module")
    vars(module)["create_plugin"] = create
    monkeypatch.setitem(sys.modules, "a_plugin_module", module)
    assert started(services, factory_source("MINE", path)).plugin("MINE").name == "MINE"


def test_a_factory_that_is_not_there_is_a_reason(services: Services) -> None:
    registry = started(services, factory_source("MINE", "no_such_module:create"))
    assert "no_such_module" in registry.reasons(full=True)["MINE"]
