"""Native libraries of custom operators, tried with one that we did not write."""

from __future__ import annotations

import ctypes.util
import logging
from pathlib import Path

import pytest

from headrace.plugins import cpu
from headrace.plugins.cuda import config as cuda
from headrace.runtime.device.cache_key import cache_key
from headrace.runtime.device.device import Device
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, UnsupportedLayers
from headrace.runtime.transform.options import NetworkOptions
from headrace.testing import networks
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest
from tests.support.custom_operators import DOMAIN, library, word_lengths
from tests.support.patience import PATIENCE_SECONDS

KEY = "CUSTOM_OPS_LIBRARIES"


@pytest.fixture
def plugin(offered: Services) -> Plugin:
    return cpu.create_plugin("CPU", offered, {KEY: library()})


def refusal(offered: Services, value: str) -> str:
    """Why the device does not start."""
    with pytest.raises(FailedPrecondition) as caught:
        cpu.create_plugin("CPU", offered, {KEY: value})
    assert caught.value.field == f"config['{KEY}']"
    return str(caught.value)


def test_its_operators_run_beside_those_of_onnx(plugin: Plugin) -> None:
    case = word_lengths()
    asked = plugin.query_network(case.network, {})
    assert asked.supported_layers == dict.fromkeys(("upper", "length", "square"), "CPU")
    loaded = plugin.load_network(Load(case.network))
    outputs = InferRequest(loaded).infer(case.inputs)
    assert list(outputs["u"]) == ["HEAD", "RACE", "Q"]  # type: ignore[arg-type]
    assert outputs["y"].tolist() == [16, 16, 1]  # type: ignore[union-attr]
    loaded.close()


def test_they_are_profiled_as_layers(plugin: Plugin) -> None:
    case = word_lengths()
    loaded = plugin.load_network(Load(case.network))
    request = InferRequest(loaded)
    request.start_async(case.inputs, profile=True)
    request.result(PATIENCE_SECONDS)
    assert {each.layer for each in request.performance_counts} >= {"upper", "length", "square"}
    loaded.close()


def test_without_it_their_layers_are_refused_with_the_domain_and_the_remedy(
    offered: Services,
) -> None:
    plain = cpu.create_plugin("CPU", offered, {})
    with pytest.raises(UnsupportedLayers) as caught:
        plain.load_network(Load(word_lengths().network))
    assert [each.layer for each in caught.value.layers] == ["upper", "length"]
    for each in caught.value.layers:
        assert f"this server has no operator {each.op_type} of the domain {DOMAIN!r}" in each.reason
        assert f"as {KEY} in the configuration file" in each.reason


def test_an_operator_that_the_library_lacks_is_refused_and_no_other_layer(plugin: Plugin) -> None:
    lacking = network_of(f"""g (string[n] x, float[n] f) => (int64[n] y, float[n] z) {{
        [upper] u = {DOMAIN}.StringUpper(x)
        [length] y = {DOMAIN}.StringLength(u)
        [bogus] z = {DOMAIN}.Bogus(f)
    }}""")
    asked = plugin.query_network(lacking, {})
    assert asked.supported_layers == {"upper": "CPU", "length": "CPU"}
    assert [each.layer for each in asked.unsupported] == ["bogus"]


def test_a_layer_that_gets_another_type_than_the_operator_takes_is_refused(plugin: Plugin) -> None:
    wrong = network_of(f"g (float[n] x) => (string[n] y) {{ [upper] y = {DOMAIN}.StringUpper(x) }}")
    (refused,) = plugin.query_network(wrong, {}).unsupported
    assert "tensor(float)" in refused.reason


def test_clients_are_told_its_name_and_not_its_folder(plugin: Plugin) -> None:
    name = Path(library()).name
    loaded = plugin.load_network(Load(networks.add().network))
    assert plugin.get_config(KEY) == loaded.config.get_parameter(KEY) == name
    assert KEY not in plugin.settings()  # what the state directory keeps
    loaded.close()


def test_a_device_without_any_shows_none(offered: Services) -> None:
    assert cpu.create_plugin("CPU", offered, {}).get_config(KEY) == ""


def test_what_is_compiled_depends_on_it(offered: Services, plugin: Plugin) -> None:
    case, options = networks.add(), NetworkOptions()
    keys = set()
    for each in (plugin, cpu.create_plugin("CPU", offered, {})):
        loaded = each.load_network(Load(case.network))
        assert isinstance(each, Device)
        keys.add(cache_key(each, case.network, loaded.config, options).name)
        loaded.close()
    assert len(keys) == 2


def test_a_missing_one_is_the_devices_reason_and_its_folder_the_logs(
    offered: Services, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        reason = refusal(offered, f"{tmp_path}/lib missing.so")
    assert "lib missing.so" in reason
    assert "No such file" in reason
    assert str(tmp_path) not in reason
    assert str(tmp_path / "lib missing.so") in caplog.text


def test_one_that_is_no_library_or_has_no_operators_is_the_reason_too(
    offered: Services, tmp_path: Path
) -> None:
    (tmp_path / "text.so").write_text("no library")
    assert "text.so, one of" in refusal(offered, f"{tmp_path}/text.so")
    from_the_system = Path(f"/usr/lib/x86_64-linux-gnu/{ctypes.util.find_library('m')}")
    if from_the_system.exists():
        reason = refusal(offered, str(from_the_system))
        assert "RegisterCustomOps" in reason
        assert "x86_64-linux-gnu" not in reason


def test_two_with_one_domain_are_the_reason_too(offered: Services) -> None:
    assert "cannot be used together" in refusal(offered, f"{library()}:{library()}")


def test_a_relative_path_is_refused(offered: Services) -> None:
    with pytest.raises(InvalidArgument, match="absolute paths"):
        cpu.create_plugin("CPU", offered, {KEY: "operators.so"})


def test_a_gpus_sessions_get_it_as_well() -> None:
    set_to = {KEY: "/a/operators.so:/b/more.so"}
    for chosen in ({}, {"EXECUTION_PROVIDER": "TENSORRT"}):
        provider = cuda.provider(cuda.SCHEMA.resolve(set_to, chosen), "0")
        assert provider.libraries == ("/a/operators.so", "/b/more.so")
