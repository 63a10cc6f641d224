"""OPENCL does what every device must, in the process that it always lives in.

What PoCL compiles takes a third of a second a kernel at first, and each shape has kernels of its
own. So the tests of many shapes run only where KERNELS=all says so, as `make conformance` does; the
others take half a minute without a compiled kernel on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import Unavailable
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.isolation.server.workers import Launch
from headrace.testing import DeviceConformance
from tests.support.borrowed_worker import worker_to_borrow

_MANY_KERNELS = (
    "test_a_network_computes_what_the_reference_does[image]",
    "test_a_network_computes_what_the_reference_does[transformer]",
    "test_all_of_it_goes_together",
    "test_an_image_is_enlarged_to_the_size_of_the_network",
    "test_an_image_is_shrunk_by_linear_interpolation",
    "test_an_input_can_be_sent_in_another_layout",
    "test_an_input_can_be_sent_in_another_type",
    "test_an_output_can_be_received_in_another_type",
    "test_eight_threads_on_two_networks_get_their_own_results[AUTO]",
    "test_mean_and_scale_are_one_value_for_each_channel",
    "test_mean_and_scale_may_be_one_value_for_all",
    "test_the_batch_may_have_any_size[1]",
    "test_the_batch_may_have_any_size[7]",
    "test_the_sizes_may_change_from_request_to_request",
)


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    with worker_to_borrow() as launch:
        yield launch


@pytest.fixture(autouse=True)
def few_kernels(request: pytest.FixtureRequest) -> None:
    """Leaves out what compiles many kernels, unless all are asked for."""
    if request.node.name in _MANY_KERNELS and os.environ.get("KERNELS") != "all":
        pytest.skip("it compiles many kernels; make conformance runs it")


class TestOpenCl(DeviceConformance):
    @pytest.fixture
    def plugin(self, launch: Launch, services: Services) -> Iterator[Plugin]:
        path = "headrace.plugins.opencl:create_plugin"
        try:
            plugin = IsolatedPlugin("OPENCL", services, {}, path, launch=launch)
        except Unavailable as error:
            pytest.skip(str(error))
        yield plugin
        plugin.close()
