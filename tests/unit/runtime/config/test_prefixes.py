from __future__ import annotations

import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.prefixes import check_prefixes, checked_for, for_device, own_config
from headrace.runtime.errors import InvalidArgument, NotFound


def test_a_prefixed_key_is_for_its_device_and_wins_over_a_plain_one() -> None:
    config = {
        "CPU.1.NUM_STREAMS": "1",
        "cpu.NUM_STREAMS": "2",
        "NUM_STREAMS": "3",
        "OPENCL.PERF_COUNT": "YES",
    }
    assert for_device(config, "CPU.1") == {"NUM_STREAMS": "1"}
    assert for_device(config, "CPU") == {"NUM_STREAMS": "2"}
    assert for_device(config, "CPU.0") == {"NUM_STREAMS": "2"}
    assert for_device(config, "OPENCL") == {"NUM_STREAMS": "3", "PERF_COUNT": "YES"}


def test_a_prefix_that_names_no_device_of_the_list_is_refused() -> None:
    check_prefixes({"CPU.NUM_STREAMS": "2", "PERF_COUNT": "NO"}, ["CPU.0", "OPENCL"])
    with pytest.raises(NotFound, match="did you mean 'OPENCL'") as caught:
        check_prefixes({"OPNCL.NUM_STREAMS": "2"}, ["CPU.0", "OPENCL"])
    assert caught.value.field == "config['OPNCL.NUM_STREAMS']"


def test_a_device_with_an_id_gets_the_id_as_a_key() -> None:
    config = {"CPU.1.NUM_STREAMS": "1", "PERF_COUNT": "YES"}
    own = checked_for(config, DeviceName.parse("CPU.1"))
    assert own == {"NUM_STREAMS": "1", "PERF_COUNT": "YES", "DEVICE_ID": "1"}
    with pytest.raises(InvalidArgument, match="give one of them"):
        own_config({"DEVICE_ID": "0"}, DeviceName.parse("CPU.1"))


def test_a_virtual_device_gets_the_prefixes_of_its_list_and_no_others() -> None:
    device = DeviceName.parse("MULTI:CPU,OPENCL")
    config = {"CPU.NUM_STREAMS": "2", "PERF_COUNT": "YES"}
    assert checked_for(config, device) == config
    with pytest.raises(NotFound, match="TEMPLATE"):
        checked_for({"TEMPLATE.NUM_STREAMS": "2"}, device)
