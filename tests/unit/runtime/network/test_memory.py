"""The memory of networks that nobody needs any more."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.plugin_source import installed_plugins
from headrace.runtime.errors import Cancelled, InvalidModel, UnsupportedLayers
from headrace.runtime.network.memory import use
from headrace.runtime.network.network import Network
from headrace.runtime.system import garbage
from headrace.runtime.transform.options import LoadRequest, NetworkOptions
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest
from headrace.testing.occupied import eventually
from tests.support.gate import Gate
from tests.support.model_zoo import model, node, value
from tests.support.patience import PATIENCE_SECONDS

DEVICES = (
    "CPU",
    "TEMPLATE",
    "BATCH:CPU(4)",
    "HETERO:TEMPLATE,CPU",
    "MULTI:CPU,TEMPLATE",
    "AUTO:CPU,TEMPLATE",
    "MULTI:[BATCH:CPU(4)],CPU",
)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Looks for garbage that are asked for; none is carried out, not even by Python itself."""
    gc.collect()
    gc.disable()
    asked: list[bool] = []
    monkeypatch.setattr(garbage, "look_at_all", lambda: asked.append(True))
    yield asked
    gc.enable()


@pytest.fixture
def nobody_looks(looks: list[bool]) -> Iterator[None]:
    """Every thread would stop meanwhile."""
    yield
    assert not looks


@pytest.fixture
def core() -> Iterator[Core]:
    wanted = ("CPU", "TEMPLATE", "BATCH", "HETERO", "MULTI", "AUTO")
    built = Core([installed_plugins()[name] for name in wanted], blob_key=b"key")
    yield built
    built.stop()


def large(*, last: str = "Relu") -> Network:
    """Two layers with 4 MiB of weights, in an operator set that backends may not know yet."""
    weights = {"w": np.ones((1024, 1024), np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["h"], name="first"), node(last, ["h"], ["y"], name="last")]
    return network_of(model(nodes, [value("x", ("N", 1024))], [value("y", ("N", 1024))], weights))


class Watched:
    """Reads a network, and knows whether its weights are still there."""

    def __init__(self, last: str = "Relu") -> None:
        self._last = last
        self._weights: list[weakref.ref[object]] = []

    def __call__(self) -> Network:
        read = large(last=self._last)
        self._weights.append(weakref.ref(read.model.graph.initializers["w"].const_value))
        return read

    @property
    def there(self) -> bool:
        (weight,) = self._weights
        return weight() is not None


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("device", DEVICES)
def test_the_weights_of_an_unloaded_network_are_gone_without_a_look_for_garbage(
    core: Core, device: str
) -> None:
    watched = Watched()
    options = NetworkOptions(affinities={"last": "CPU"} if device.startswith("HETERO") else {})
    request = LoadRequest("m", DeviceName.parse(device), {}, options)
    core.load_network(request, watched).result(PATIENCE_SECONDS)
    assert watched.there
    core.unload_network("m").result(PATIENCE_SECONDS)
    assert not watched.there


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("device", DEVICES[:4])  # others are left to Python, without weights
def test_an_unloaded_network_is_gone_without_a_look_for_garbage(core: Core, device: str) -> None:
    """Files and maps that it refers to would stay open until then."""
    options = NetworkOptions(affinities={"last": "CPU"} if device.startswith("HETERO") else {})
    request = LoadRequest("m", DeviceName.parse(device), {}, options)
    core.load_network(request, large).result(PATIENCE_SECONDS)
    loaded = core.networks.find("m").executable
    assert loaded is not None
    InferRequest(loaded).infer({"x": np.ones((2, 1024), np.float32)})
    watched = weakref.ref(loaded)
    del loaded
    core.unload_network("m").result(PATIENCE_SECONDS)
    eventually(lambda: watched() is None, "the network to be gone")


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("device", DEVICES)
def test_the_weights_of_a_network_that_was_asked_about_are_gone_without_a_look_for_garbage(
    core: Core, device: str
) -> None:
    watched = Watched()
    asking = core.query_network(DeviceName.parse(device), {}, NetworkOptions(), watched)
    assert not asking.result(PATIENCE_SECONDS).unsupported
    assert not watched.there


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("device", DEVICES)
def test_the_weights_of_a_load_that_failed_are_gone_without_a_look_for_garbage(
    core: Core, device: str
) -> None:
    watched = Watched(last="NoSuchOperator")
    loading = core.load_network(LoadRequest("m", DeviceName.parse(device), {}), watched)
    with pytest.raises((UnsupportedLayers, InvalidModel)):
        loading.result(PATIENCE_SECONDS)
    core.query_network(  # on the same thread, so that it comes after all that the load does
        DeviceName.parse("CPU"), {}, NetworkOptions(), large
    ).result(PATIENCE_SECONDS)
    assert not watched.there


@pytest.mark.usefixtures("nobody_looks")
@pytest.mark.parametrize("device", DEVICES)
def test_the_weights_of_a_load_that_was_cancelled_are_gone_without_a_look_for_garbage(
    core: Core, device: str
) -> None:
    watched, gate = Watched(), Gate()

    def read() -> Network:
        given = watched()
        gate()
        return given

    loading = core.load_network(LoadRequest("m", DeviceName.parse(device), {}), read)
    gate.await_arrivals()
    core.cancel_load(loading)
    gate.open()
    with pytest.raises(Cancelled):
        loading.result(PATIENCE_SECONDS)
    core.query_network(DeviceName.parse("CPU"), {}, NetworkOptions(), large).result(
        PATIENCE_SECONDS
    )
    eventually(lambda: not watched.there, "the weights are gone")


@pytest.mark.usefixtures("nobody_looks")
def test_a_network_that_was_used_is_gone_without_a_look_for_garbage() -> None:
    watched = Watched()
    assert use(watched, lambda it: len(it.layers)) == 2
    assert not watched.there


def test_weights_that_a_ring_of_references_holds_are_looked_for(looks: list[bool]) -> None:
    watched = Watched()

    def task(it: Network) -> None:
        ring: list[object] = [it]
        ring.append(ring)

    use(watched, task)
    assert looks == [True]
