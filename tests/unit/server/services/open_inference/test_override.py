"""What becomes of a ModelConfig that a client sends with a load."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import HeadraceError, InvalidArgument, Unimplemented
from headrace.server.services.open_inference.override import MAX_BYTES, Override, read_override

CPU = DeviceName.parse("CPU")


def read(**facts: Any) -> Override:
    return read_override(json.dumps(facts), "m")


@pytest.mark.parametrize(
    ("facts", "device"),
    [
        ({}, "CPU"),
        ({"instance_group": [{"kind": "KIND_CPU"}]}, "CPU"),
        ({"instance_group": [{"kind": "KIND_GPU"}]}, "CUDA"),
        ({"instance_group": [{"kind": "KIND_GPU", "gpus": [1]}]}, "CUDA.1"),
        ({"instanceGroup": [{"kind": "KIND_GPU", "gpus": [0, 1]}]}, "MULTI:CUDA.0,CUDA.1"),
        ({"instance_group": [{"kind": "KIND_AUTO"}]}, "AUTO"),
        ({"instance_group": [{"kind": "KIND_MODEL"}]}, "CPU"),
        ({"instance_group": [{"count": 2}]}, "CPU"),
        ({"backend": "onnxruntime", "platform": "onnxruntime_onnx"}, "CPU"),
        ({"backend": "openvino"}, "OPENVINO"),
        ({"backend": "openvino", "instance_group": [{"kind": "KIND_CPU"}]}, "OPENVINO"),
        ({"parameters": {"DEVICE": {"string_value": "HETERO:OPENCL,CPU"}}}, "HETERO:OPENCL,CPU"),
        ({"max_batch_size": 8, "dynamic_batching": {}}, "BATCH:CPU(8)"),
        (
            {
                "max_batch_size": 8,
                "dynamic_batching": {"preferred_batch_size": [2, 4]},
                "parameters": {"DEVICE": {"string_value": "HETERO:A,B"}},
            },
            "BATCH:[HETERO:A,B](4)",
        ),
    ],
)
def test_the_device_follows_from_the_configuration(facts: dict[str, Any], device: str) -> None:
    assert str(read(**facts).on(CPU)) == device


def test_without_a_word_the_described_device_stays() -> None:
    assert str(read().on(DeviceName.parse("OPENVINO.CPU"))) == "OPENVINO.CPU"


def test_parameters_are_configuration_keys() -> None:
    override = read(
        parameters={"PERF_COUNT": {"string_value": "YES"}},
        instance_group=[{"count": 2}],
        max_batch_size=4,
        dynamic_batching={"max_queue_delay_microseconds": 1500},
    )
    assert override.config == {"PERF_COUNT": "YES", "NUM_STREAMS": "2", "AUTO_BATCH_TIMEOUT": "2"}


def test_states_are_those_of_sequence_batching() -> None:
    override = read(
        sequence_batching={
            "state": [{"input_name": "h", "output_name": "hn"}],
            "max_sequence_idle_microseconds": "5000000",
        }
    )
    assert override.config == {"STATES": "h=hn", "SEQUENCE_IDLE_TIMEOUT": "5"}


@pytest.mark.parametrize(
    ("batch", "dims", "first", "states"),
    [
        (0, [2, 1, 128], [], "h=hn=2x1x128"),
        (0, [2, -1, 128], [], "h=hn=2x?x128"),
        (0, [2, -1, 128], [2, 1, 128], "h=hn=2x1x128"),
        (4, [-1], [64], "h=hn=?x64"),
    ],
)
def test_sizes_of_states_are_those_of_their_dims_and_of_their_first_values(
    batch: int, dims: list[int], first: list[int], states: str
) -> None:
    state = {"input_name": "h", "output_name": "hn", "dims": dims}
    state["initial_state"] = [{"dims": first, "zero_data": True}]
    override = read(max_batch_size=batch, sequence_batching={"state": [state]})
    assert override.config["STATES"] == states


def test_the_key_says_more_about_states_than_sequence_batching() -> None:
    override = read(
        parameters={"STATES": {"string_value": "h=hn=2x1x128=-1"}},
        sequence_batching={"state": [{"input_name": "h", "output_name": "hn"}]},
    )
    assert override.config["STATES"] == "h=hn=2x1x128=-1"


def test_the_batch_size_is_changed_only_where_it_is_said() -> None:
    assert read().max_batch_size is None
    assert read(max_batch_size=0).max_batch_size == 0
    assert read(maxBatchSize=3).max_batch_size == 3


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ({"latest": {"num_versions": 2}}, {"2", "3"}),
        ({"all": {}}, {"1", "2", "3"}),
        ({"specific": {"versions": [1, 3]}}, {"1", "3"}),
    ],
)
def test_the_version_policy_is_tritons(policy: Any, chosen: set[str]) -> None:
    found = read(version_policy=policy).policy
    assert found is not None
    assert found.choose(["1", "2", "3"]) == chosen


def test_a_warm_up_has_the_shapes_of_its_inputs() -> None:
    inputs = {"x": {"data_type": "TYPE_FP32", "dims": [3], "zero_data": True}}
    warm_up = [{"name": "first", "batch_size": 2, "count": 5, "inputs": inputs}]
    found = read(max_batch_size=4, model_warmup=warm_up).warm_up
    assert found is not None
    assert (found.count, found.shapes) == (5, {"x": (2, 3)})


def test_labels_are_files_of_outputs() -> None:
    output = {"name": "z", "data_type": "TYPE_FP32", "dims": [3], "label_filename": "labels.txt"}
    override = read(output=[output])
    assert override.label_files == {"z": "labels.txt"}
    assert override.ports.output[0].dims == [3]


HONOURED = {
    "name",
    "platform",
    "backend",
    "version_policy",
    "max_batch_size",
    "input",
    "output",
    "instance_group",
    "parameters",
    "sequence_batching",
    "dynamic_batching",
    "default_model_filename",
    "model_transaction_policy",
    "model_warmup",
}
SAMPLES: dict[str, Any] = {
    "batch_input": [{"target_name": ["x"]}],
    "batch_output": [{"target_name": ["x"]}],
    "optimization": {"priority": "PRIORITY_MAX"},
    "ensemble_scheduling": {"step": [{"model_name": "a"}]},
    "cc_model_filenames": {"7.5": "a"},
    "metric_tags": {"a": "b"},
    "model_operations": {"op_library_filename": ["a"]},
    "model_repository_agents": {"agents": [{"name": "a"}]},
    "response_cache": {"enable": True},
}


def test_every_field_is_either_honoured_or_refused() -> None:
    assert HONOURED | set(SAMPLES) == {each.name for each in oip.ModelConfig.DESCRIPTOR.fields}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_field_without_a_meaning_is_refused_by_name(name: str) -> None:
    with pytest.raises(Unimplemented, match=f"the configuration's {name}.* has no meaning here"):
        read(**{name: SAMPLES[name]})


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"input": [{"name": "x", "allow_ragged_batch": True}]}, "input.allow_ragged_batch"),
        ({"instance_group": [{"passive": True}]}, "instance_group.passive"),
        ({"model_transaction_policy": {"decoupled": True}}, "model_transaction_policy.decoupled"),
        ({"sequence_batching": {"iterative_sequence": True}}, "iterative_sequence"),
        ({"sequence_batching": {"control_input": [{"name": "a"}]}}, "control_input"),
        ({"max_batch_size": 1, "dynamic_batching": {"priority_levels": 2}}, "priority_levels"),
    ],
)
def test_a_field_inside_another_is_refused_with_its_path(facts: Any, why: str) -> None:
    with pytest.raises(Unimplemented, match=why):
        read(**facts)


def test_what_asks_for_nothing_is_no_reason_to_refuse() -> None:
    assert read(optimization={}, response_cache={"enable": False}, ensemble_scheduling={})


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"name": "other"}, "name is 'other', but 'm' is loaded"),
        ({"platform": "tensorflow_graphdef"}, "platform is 'tensorflow_graphdef'"),
        ({"backend": "python"}, "backend is 'python'"),
        ({"default_model_filename": "m.plan"}, "default_model_filename is not model.onnx"),
        ({"max_batch_size": -1}, "max_batch_size is -1"),
        ({"instance_group": [{"count": -1}]}, "count is -1"),
        ({"instance_group": [{}, {}]}, "several groups"),
        ({"instance_group": [{"kind": "KIND_CPU", "gpus": [0]}]}, "gpus is for KIND_GPU"),
        ({"dynamic_batching": {}}, "needs max_batch_size"),
        ({"max_batch_size": 2, "dynamic_batching": {"preferred_batch_size": [4]}}, "1 to 2"),
        ({"unknown": 1}, 'no field named "unknown"'),
        ({"max_batch_size": "many"}, "is not a ModelConfig as JSON"),
        ({"version_policy": {"latest": {"num_versions": 1001}}}, "version policy"),
        ({"model_warmup": [{}, {}]}, "several entries"),
        ({"model_warmup": [{"inputs": {"x": {"random_data": True}}}]}, "random_data"),
        (
            {"sequence_batching": {"state": [{"initial_state": [{"data_file": "a"}]}]}},
            "data_file",
        ),
        (
            {"sequence_batching": {"state": [{"input_name": "a,b", "output_name": "c"}]}},
            "must not",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused(facts: Any, why: str) -> None:
    with pytest.raises(HeadraceError, match=why):
        read(**facts)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "1" * 10_000, "[" * 100_000, '{"a":' * 50_000, "{" + " " * MAX_BYTES]
)
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_override(text, "m")
    assert caught.value.field == "parameters['config']"
