"""Messages of the protocol as JSON."""

from __future__ import annotations

from headrace.oip import open_inference_pb2 as oip
from headrace.server.http.rest.render import rendered


def test_numbers_are_numbers_and_what_is_not_set_has_its_default() -> None:
    stats = oip.ModelStatistics(
        name="m",
        inference_count=2**63,
        inference_stats=oip.InferStatistics(success=oip.StatisticDuration(count=1, ns=2)),
    )
    found = rendered(stats)
    assert found.pop("response_stats") == {}
    assert found == {
        "name": "m",
        "version": "",
        "last_inference": 0,
        "inference_count": 2**63,
        "execution_count": 0,
        "inference_stats": {"success": {"count": 1, "ns": 2}},
        "batch_stats": [],
        "memory_usage": [],
    }


def test_maps_choices_and_kinds_are_shown_by_name() -> None:
    config = oip.ModelConfig(
        parameters={"b": oip.ModelParameter(string_value="c"), "a": oip.ModelParameter()},
        input=[oip.ModelInput(name="x", data_type=oip.TYPE_FP32, dims=[-1, 3])],
        version_policy=oip.ModelVersionPolicy(latest=oip.ModelVersionPolicy.Latest(num_versions=1)),
    )
    shown = rendered(config)
    assert list(shown["parameters"]) == ["a", "b"]
    assert shown["input"][0]["data_type"] == "TYPE_FP32"
    assert shown["input"][0]["dims"] == [-1, 3]
    assert shown["version_policy"] == {"latest": {"num_versions": 1}}
    assert "sequence_batching" not in shown
