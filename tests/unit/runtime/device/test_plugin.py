"""Loads and queries as every plugin does them, whatever its device raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir
import pytest

from headrace.runtime.device.load import Load
from headrace.runtime.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    InvalidModel,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.testing import networks
from headrace.testing.services import services
from tests.support.hook_plugin import SECRET, HookPlugin


@pytest.fixture
def plugin() -> Iterator[HookPlugin]:
    with services() as offered:
        yield HookPlugin("HOOK", offered, {})


@pytest.fixture
def network() -> Network:
    return networks.add().network


def raising(error: Exception) -> Callable[[object], Any]:
    def hook(_: object) -> None:
        raise error

    return hook


def test_a_cancel_while_the_device_compiles_ends_the_load_though_it_succeeds(
    plugin: HookPlugin, network: Network
) -> None:
    plugin.on_compile = lambda token: token.cancel(Cancelled("nobody waits"))
    with pytest.raises(Cancelled, match="nobody waits"):
        plugin.load_network(Load(network, token=CancelToken()))
    assert [each.closed for each in plugin.compiled] == [1]


def test_a_cancelled_import_leaves_nothing_either(plugin: HookPlugin, network: Network) -> None:
    plugin.on_compile = lambda token: token.cancel(Cancelled("nobody waits"))
    with pytest.raises(Cancelled):
        plugin.load_network(Load(network, token=CancelToken()))
    assert [each.closed for each in plugin.compiled] == [1]


@pytest.mark.parametrize("error", [RuntimeError(SECRET), Internal(SECRET), InvalidModel(SECRET)])
def test_whatever_a_cancelled_load_raises_it_was_cancelled(
    plugin: HookPlugin, network: Network, error: Exception
) -> None:
    def fail(token: CancelToken) -> None:
        token.cancel(Cancelled("nobody waits"))
        raise error

    plugin.on_compile = fail
    with pytest.raises(Cancelled) as caught:
        plugin.load_network(Load(network, token=CancelToken()))
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("error", [RuntimeError(SECRET), KeyError(SECRET), StopIteration(SECRET)])
def test_a_bug_in_a_device_is_internal_and_its_text_the_cause_alone(
    plugin: HookPlugin, network: Network, error: Exception
) -> None:
    plugin.on_compile = raising(error)
    with pytest.raises(Internal) as caught:
        plugin.load_network(Load(network))
    assert SECRET not in caught.value.message
    assert caught.value.__cause__ is error


def test_a_bug_in_a_transformation_or_a_verdict_is_internal_too(
    plugin: HookPlugin, network: Network
) -> None:
    plugin.on_support = raising(RuntimeError(SECRET))
    with pytest.raises(Internal):
        plugin.load_network(Load(network))
    plugin.passes = [raising(RuntimeError(SECRET))]
    with pytest.raises(Internal):
        plugin.load_network(Load(network))


def test_a_refusal_of_the_backend_is_the_models_fault(plugin: HookPlugin, network: Network) -> None:
    plugin.on_compile = raising(Internal("weights of the wrong rank"))
    with pytest.raises(InvalidModel, match="wrong rank"):
        plugin.load_network(Load(network))


def test_a_load_and_a_query_transform_the_network_once(
    plugin: HookPlugin, network: Network
) -> None:
    seen: list[ir.Model] = []

    def count(model: ir.Model) -> bool:
        seen.append(model)
        return False

    plugin.passes = [count]
    plugin.query_network(network, {})
    assert len(seen) == 1
    plugin.load_network(Load(network)).close()
    assert len(seen) == 2
    plugin.on_compile = raising(InvalidArgument("no"))
    with pytest.raises(InvalidArgument):  # which puts every layer to the device once more
        plugin.load_network(Load(network))
    assert len(seen) == 3


def test_the_network_that_is_judged_is_the_one_that_is_compiled(
    plugin: HookPlugin, network: Network
) -> None:
    judged: list[Network] = []
    plugin.on_support = judged.append
    loaded = plugin.load_network(Load(network))
    assert [each.network for each in plugin.compiled] == judged
    loaded.close()


def test_a_load_lists_what_the_device_does_not_support(plugin: HookPlugin) -> None:
    with pytest.raises(UnsupportedLayers) as caught:
        plugin.load_network(Load(networks.unknown_operators().network))
    assert [layer.layer for layer in caught.value.layers] == ["strange"]
    assert not plugin.compiled
