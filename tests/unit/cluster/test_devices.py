"""The devices that Ray's resources give a replica."""

from __future__ import annotations

import pytest

from headrace.cluster.devices import with_devices
from headrace.server.settings.plugin_settings import PluginSettings
from headrace.server.settings.settings import Settings


def plugins(settings: Settings) -> dict[str, PluginSettings]:
    return {each.name: each for each in settings.plugins}


def test_a_replica_without_a_gpu_has_no_cuda() -> None:
    found = plugins(with_devices(Settings(), {"GPU": []}, 0.0))
    assert found == {"CUDA": PluginSettings("CUDA", enabled=False)}


def test_a_replica_with_gpus_keeps_cuda_as_it_is() -> None:
    assert plugins(with_devices(Settings(), {"GPU": ["3"]}, 0.5)) == {}
    own = PluginSettings("CUDA", config={"NUM_STREAMS": "2"})
    found = with_devices(Settings(plugins=(own,)), {"GPU": ["0", "1"]}, 0.0)
    assert found.plugins == (own,)


def test_cuda_stays_where_the_settings_name_it() -> None:
    named = Settings(devices=("CUDA",))
    assert plugins(with_devices(named, {}, 0.0)) == {}
    own = PluginSettings("CUDA", config={"NUM_STREAMS": "2"})
    assert with_devices(Settings(plugins=(own,)), {}, 0.0).plugins == (own,)


@pytest.mark.parametrize(("cpus", "threads"), [(1.0, "1"), (2.9, "2"), (16, "16")])
def test_devices_on_the_processor_have_as_many_threads_as_reserved(
    cpus: float, threads: str
) -> None:
    found = plugins(with_devices(Settings(), {"GPU": ["0"]}, cpus))
    assert {name: dict(each.config) for name, each in found.items()} == {
        name: {"INFERENCE_NUM_THREADS": threads} for name in ("CPU", "OPENVINO")
    }


def test_what_the_settings_say_wins() -> None:
    own = PluginSettings(
        "CPU", factory="m:f", config={"INFERENCE_NUM_THREADS": "7", "NUM_STREAMS": "3"}
    )
    found = plugins(with_devices(Settings(plugins=(own,)), {"GPU": ["0"]}, 4))
    assert found["CPU"] == own
    assert found["OPENVINO"].config == {"INFERENCE_NUM_THREADS": "4"}
