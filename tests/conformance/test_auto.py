"""AUTO does what every device must, while it goes from one device to a better one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.plugins import auto, cpu, template
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource, installed_plugins
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest, NetworkOptions
from headrace.testing import DeviceConformance
from headrace.testing.case import parse
from headrace.testing.leaks import no_leaks
from headrace.testing.services import services as real_services
from tests.support.patience import PATIENCE_SECONDS

SOURCES = (
    PluginSource("CPU", lambda: cpu.create_plugin),
    # Nobody knows its name, so it is taken for an accelerator and preferred.
    PluginSource("ACCELERATOR", lambda: template.create_plugin),
)


class TestAuto(DeviceConformance):
    @pytest.fixture
    def services(self) -> Iterator[Services]:
        with no_leaks(), real_services(SOURCES) as offered:
            yield offered

    @pytest.fixture
    def plugin(self, services: Services) -> Plugin:
        return auto.create_plugin("AUTO", services, {})


NESTED = ("AUTO:[BATCH:CPU(4)]", "AUTO:[BATCH:CPU(4)],TEMPLATE", "AUTO:TEMPLATE,[BATCH:CPU(4)]")
NETWORKS = {
    "rows": "n (float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    "mixed rows": "n (float[N,3] x) => (float[N,3] y) { y = Softmax<axis = 0>(x) }",
    "no rows": "n (float[2,3] x) => (float[2,3] y) { y = Relu(x) }",
    "unknown layer": "n (float[N,3] x) => (float[N,3] y) { y = NoSuchOperator(x) }",
    "mixed rows, unknown layer": (
        "n (float[N,3] x) => (float[N,3] y) { z = Softmax<axis = 0>(x) y = NoSuchOperator(z) }"
    ),
}


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    names = ("AUTO", "BATCH", "CPU", "TEMPLATE")
    built = Core([installed_plugins()[name] for name in names], blob_key=b"key")
    yield built
    built.stop()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("device", NESTED)
def test_a_query_says_whether_a_load_over_batch_succeeds(
    core: Core, device: str, network: str
) -> None:
    data = parse(NETWORKS[network], {}).SerializeToString()
    name = DeviceName.parse(device)
    asking = core.query_network(name, {}, NetworkOptions(), lambda: Network.from_bytes(data))
    unsupported = asking.result(PATIENCE_SECONDS).unsupported
    loading = core.load_network(LoadRequest("m", name, {}), lambda: Network.from_bytes(data))
    if unsupported:
        with pytest.raises((UnsupportedLayers, InvalidArgument, FailedPrecondition)):
            loading.result(PATIENCE_SECONDS)
    else:
        loading.result(PATIENCE_SECONDS)
        core.unload_network("m").result(PATIENCE_SECONDS)
