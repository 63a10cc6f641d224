"""The interface of a device asks for no more than each of them has."""

from __future__ import annotations

import inspect

import pytest

from headrace.plugins.batch.plugin import BatchPlugin
from headrace.plugins.hetero.plugin import HeteroPlugin
from headrace.plugins.multi.plugin import AutoPlugin, MultiPlugin
from headrace.runtime.device.compiled_plugin import CompiledPlugin
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.isolation.server.plugin import IsolatedPlugin

COMPILE_NOTHING = (HeteroPlugin, MultiPlugin, AutoPlugin, BatchPlugin, IsolatedPlugin)


@pytest.mark.parametrize("device", COMPILE_NOTHING)
def test_a_device_that_has_others_compile_implements_the_interface_alone(
    device: type[Plugin],
) -> None:
    assert not inspect.isabstract(device)
    assert not issubclass(device, CompiledPlugin)
    assert not {"_support", "_compile", "_import"} & set(dir(device))


@pytest.mark.parametrize("device", COMPILE_NOTHING)
def test_no_device_stubs_a_part_of_the_interface(device: type[Plugin]) -> None:
    ours = (each for each in device.__mro__ if each.__module__.startswith("headrace."))
    assert not [each for each in ours if "NotImplementedError" in inspect.getsource(each)]
