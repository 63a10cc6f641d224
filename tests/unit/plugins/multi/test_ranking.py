"""Which device is best for a network."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from headrace.plugins.multi.ranking import DeviceFacts, DeviceType, device_type, needs, ranked
from headrace.testing import networks
from headrace.testing.case import Case, parse

_FP32 = frozenset({"FP32"})


def facts(kind: DeviceType, *more: str) -> DeviceFacts:
    return DeviceFacts(kind, _FP32 | set(more))


def test_the_better_type_comes_first() -> None:
    order = [DeviceType.REFERENCE, DeviceType.PROCESSOR, DeviceType.DISCRETE, DeviceType.INTEGRATED]
    assert ranked([facts(each) for each in order], set(), in_order=False) == [2, 3, 1, 0]


def test_devices_of_one_type_stay_in_order() -> None:
    processors = [facts(DeviceType.PROCESSOR)] * 3
    assert ranked(processors, set(), in_order=False) == [0, 1, 2]


def test_a_list_is_the_users_preference() -> None:
    order = [facts(DeviceType.PROCESSOR), facts(DeviceType.DISCRETE)]
    assert ranked(order, set(), in_order=True) == [0, 1]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_device_that_lacks_the_networks_type_comes_after_one_that_has_it(in_order: bool) -> None:
    order = [facts(DeviceType.DISCRETE), facts(DeviceType.PROCESSOR, "FP64")]
    assert ranked(order, {"FP64"}, in_order=in_order) == [1, 0]


def test_a_device_of_which_nothing_is_known_comes_last() -> None:
    order = [None, facts(DeviceType.REFERENCE)]
    assert ranked(order, {"FP16", "INT8"}, in_order=False) == [1, 0]


def test_a_device_may_tell_its_type() -> None:
    assert device_type("OPENCL", "PROCESSOR") is DeviceType.PROCESSOR
    assert device_type("OPENCL", "discrete") is DeviceType.DISCRETE


def test_opencl_on_the_processor_is_no_accelerator() -> None:
    assert device_type("OPENCL", "EMULATED") > DeviceType.PROCESSOR
    assert device_type("OPENCL", "INTEGRATED") < DeviceType.PROCESSOR


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CPU", DeviceType.PROCESSOR),
        ("CPU.0", DeviceType.PROCESSOR),
        ("TEMPLATE", DeviceType.REFERENCE),
        ("MINE", DeviceType.INTEGRATED),
    ],
)
def test_otherwise_its_name_tells(name: str, expected: DeviceType) -> None:
    assert device_type(name) is expected
    assert device_type(name, "no such type") is expected


@pytest.mark.parametrize(
    ("dtype", "name", "capability"),
    [
        (np.float16, "float16", "FP16"),
        (np.float64, "double", "FP64"),
        (ml_dtypes.bfloat16, "bfloat16", "BF16"),
    ],
)
def test_a_network_needs_what_its_values_are(dtype: type, name: str, capability: str) -> None:
    assert needs(networks.typed(dtype, name).network) == {capability}


def test_a_float32_network_needs_nothing_special() -> None:
    assert needs(networks.mlp().network) == set()


def test_a_quantized_network_needs_integers() -> None:
    text = "n (uint8[2, 2] x, uint8[2, 2] y) => (int32[2, 2] z) { z = MatMulInteger(x, y) }"
    assert needs(Case("n", parse(text), {}).network) == {"INT8"}
