"""What a ModelConfig means: as JSON of a client, and as the text of ``config.pbtxt``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import HeadraceError, InvalidArgument, Unimplemented
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import (
    InputOptions,
    LoadRequest,
    NetworkOptions,
    OutputOptions,
    Presentation,
)
from headrace.server.repository.model_config import (
    MAX_BYTES,
    ModelSettings,
    read_json,
    read_text,
)
from headrace.server.repository.model_ports import check_ports
from headrace.testing.case import parse

NOWHERE = Path("/nonexistent")
SUM = Network.from_bytes(
    parse("sum (float[n,3] x) => (float[n,3] z) { z = Identity(x) }").SerializeToString()
)


def read(**facts: Any) -> ModelSettings:
    """What the JSON means. As text the configuration means the same, but where it sets a default
    value, which text cannot tell from none."""
    text = json.dumps(facts)
    found = read_json(text, "m")
    written = text_format.MessageToString(json_format.Parse(text, oip.ModelConfig()))
    if "KIND_AUTO" not in text and found.max_batch_size != 0:
        assert replace(read_text(written.encode(), "m", NOWHERE), place=found.place) == found
    return found


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
        (
            {
                "optimization": {
                    "execution_accelerators": {"cpu_execution_accelerator": [{"name": "openvino"}]}
                }
            },
            "OPENVINO",
        ),
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
    assert str(read(**facts).on("CPU")) == device


def test_without_a_word_the_described_device_stays() -> None:
    assert str(read().on("OPENVINO.CPU")) == "OPENVINO.CPU"


def test_parameters_are_configuration_keys() -> None:
    settings = read(
        parameters={
            "PERF_COUNT": {"string_value": "YES"},
            "intra_op_thread_count": {"string_value": "3"},
        },
        instance_group=[{"count": 2}],
        max_batch_size=4,
        dynamic_batching={"max_queue_delay_microseconds": 1500},
    )
    assert settings.config == {
        "PERF_COUNT": "YES",
        "INFERENCE_NUM_THREADS": "3",
        "NUM_STREAMS": "2",
        "AUTO_BATCH_TIMEOUT": "2",
    }


def test_replies_are_kept_where_the_configuration_says_so() -> None:
    assert read(response_cache={"enable": True}).config == {"RESPONSE_CACHE": "YES"}
    assert read(response_cache={"enable": False}).config == {}
    own = {"RESPONSE_CACHE": {"string_value": "NO"}}
    assert read(response_cache={"enable": True}, parameters=own).config == {"RESPONSE_CACHE": "NO"}


def test_requests_without_a_priority_have_that_of_the_configuration() -> None:
    levels = {"priority_levels": 3, "default_priority_level": 2}
    settings = read(max_batch_size=4, dynamic_batching=levels)
    assert settings.priority == 9  # as a request that asks for 2, where 1 is 10 and 21 is -10


def test_states_are_those_of_sequence_batching() -> None:
    settings = read(
        sequence_batching={
            "state": [{"input_name": "h", "output_name": "hn"}],
            "max_sequence_idle_microseconds": "5000000",
        }
    )
    assert settings.config == {"STATES": "h=hn", "SEQUENCE_IDLE_TIMEOUT": "5"}


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
    settings = read(max_batch_size=batch, sequence_batching={"state": [state]})
    assert settings.config["STATES"] == states


def test_the_key_says_more_about_states_than_sequence_batching() -> None:
    settings = read(
        parameters={"STATES": {"string_value": "h=hn=2x1x128=-1"}},
        sequence_batching={"state": [{"input_name": "h", "output_name": "hn"}]},
    )
    assert settings.config["STATES"] == "h=hn=2x1x128=-1"


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


def test_warm_ups_have_the_shapes_of_their_inputs() -> None:
    inputs = {"x": {"data_type": "TYPE_FP32", "dims": [3], "zero_data": True}}
    random = {"x": {"data_type": "TYPE_FP32", "dims": [3], "random_data": True}}
    warm_ups = [
        {"name": "first", "batch_size": 2, "count": 5, "inputs": inputs},
        {"name": "second", "inputs": random},
    ]
    first, second = read(max_batch_size=4, model_warmup=warm_ups).warm_ups
    assert (first.count, first.shapes, first.random) == (5, {"x": (2, 3)}, frozenset())
    assert (second.count, second.shapes, second.random) == (1, {"x": (1, 3)}, frozenset(["x"]))


def test_the_files_of_a_warm_up_lie_in_the_folder_of_the_network(tmp_path: Path) -> None:
    text = b"""model_warmup { inputs { key: "x" value {
        data_type: TYPE_FP32 dims: 3 input_data_file: "raw" } } }"""
    with pytest.raises(InvalidArgument, match="'warmup/raw' is not a file") as caught:
        read_text(text, "m", tmp_path)
    assert caught.value.field == "config.pbtxt: model_warmup.inputs.input_data_file"
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "raw").write_bytes(bytes(12))
    (warm_up,) = read_text(text, "m", tmp_path).warm_ups
    assert warm_up.raw == {"x": tmp_path / "warmup" / "raw"}


def test_clients_see_the_shapes_of_dims_and_the_model_has_those_of_reshape() -> None:
    settings = read(
        max_batch_size=4,
        input=[{"name": "x", "dims": [1, 3], "reshape": {"shape": [3]}}],
        output=[{"name": "z", "dims": [1], "reshape": {"shape": []}}],
    )
    assert settings.options == NetworkOptions(
        {"x": InputOptions(shape=(None, 1, 3))}, {"z": OutputOptions(shape=(None, 1))}
    )
    assert settings.ports.input[0].dims == [3]
    assert settings.ports.output[0].dims == []


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]}, ""),
        ({"input": [{"name": "x", "dims": [-1]}]}, ""),
        ({"input": [{"name": "x", "dims": [1, 3], "reshape": {"shape": [3]}}]}, ""),
        ({"input": [{"name": "y"}]}, "no input 'y'"),
        ({"output": [{"name": "y"}]}, "no output 'y'"),
        ({"input": [{"name": "x", "data_type": "TYPE_INT8"}]}, "is TYPE_FP32, not TYPE_INT8"),
        ({"input": [{"name": "x", "dims": [4]}]}, r"has dims \[3\], not \[4\]"),
        ({"input": [{"name": "x", "dims": [3], "reshape": {"shape": []}}]}, r"not \[\]"),
        ({"input": [{"name": "x", "optional": True}]}, "has to be given"),
    ],
)
def test_ports_are_those_of_the_model(facts: Any, why: str) -> None:
    settings = read(max_batch_size=2, **facts)
    request = LoadRequest("m", DeviceName.parse("CPU"), presentation=Presentation(2))
    if not why:
        assert check_ports(SUM, settings, request) is SUM
        return
    with pytest.raises(InvalidArgument, match=why) as caught:
        check_ports(SUM, settings, request)
    assert caught.value.field == "parameters['config']"


def test_labels_are_files_of_outputs() -> None:
    output = {"name": "z", "data_type": "TYPE_FP32", "dims": [3], "label_filename": "labels.txt"}
    settings = read(output=[output])
    assert settings.label_files == {"z": "labels.txt"}
    assert settings.ports.output[0].dims == [3]


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
    "optimization",
    "ensemble_scheduling",
    "response_cache",
}
SAMPLES: dict[str, Any] = {
    "batch_input": [{"target_name": ["x"]}],
    "batch_output": [{"target_name": ["x"]}],
    "cc_model_filenames": {"7.5": "a"},
    "metric_tags": {"a": "b"},
    "model_operations": {"op_library_filename": ["a"]},
    "model_repository_agents": {"agents": [{"name": "a"}]},
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
        ({"dynamic_batching": {"preserve_ordering": True}}, "dynamic_batching.preserve_ordering"),
        (
            {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 1}}},
            "dynamic_batching.default_queue_policy",
        ),
        ({"optimization": {"priority": "PRIORITY_MAX"}}, "optimization.priority"),
        (
            {
                "optimization": {
                    "execution_accelerators": {
                        "cpu_execution_accelerator": [
                            {"name": "openvino", "parameters": {"a": "b"}}
                        ]
                    }
                }
            },
            "cpu_execution_accelerator.parameters",
        ),
        ({"platform": "ensemble", "instance_group": [{"count": 2}]}, "instance_group"),
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
        ({"max_batch_size": -1}, "max_batch_size is -1"),
        ({"instance_group": [{"count": -1}]}, "count is -1"),
        ({"instance_group": [{}, {}]}, "several groups"),
        ({"instance_group": [{"kind": "KIND_CPU", "gpus": [0]}]}, "gpus is for KIND_GPU"),
        ({"dynamic_batching": {}}, "needs max_batch_size"),
        ({"max_batch_size": 2, "dynamic_batching": {"preferred_batch_size": [4]}}, "1 to 2"),
        ({"unknown": 1}, 'no field named "unknown"'),
        ({"max_batch_size": "many"}, "is not a ModelConfig as JSON"),
        ({"version_policy": {"latest": {"num_versions": 1001}}}, "version policy"),
        ({"model_warmup": [{"count": 1001}]}, "at most 1000"),
        ({"model_warmup": [{"inputs": {"x": {"dims": [-1]}}}]}, "size below 0"),
        ({"input": [{"name": "x", "dims": [-2]}]}, "size below -1"),
        ({"sequence_batching": {"direct": {}}}, "sequence_batching has no state"),
        ({"max_batch_size": 1, "dynamic_batching": {"priority_levels": 2}}, "is 0 of 2"),
        (
            {
                "max_batch_size": 1,
                "dynamic_batching": {"priority_levels": 22, "default_priority_level": 3},
            },
            "at most 21",
        ),
        (
            {
                "optimization": {
                    "execution_accelerators": {"cpu_execution_accelerator": [{"name": "fast"}]}
                }
            },
            "is 'fast'",
        ),
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


def test_a_load_takes_the_usual_name_of_the_model_alone() -> None:
    with pytest.raises(InvalidArgument, match="default_model_filename"):
        read_json('{"default_model_filename": "m.plan"}', "m")
    found = read_text(b'default_model_filename: "m.onnx"', "m", NOWHERE)
    assert found.model_file == "m.onnx"


@pytest.mark.parametrize("text", ["platform: ", "plattform: 'x'", "a {" * 10_000, "\xff"])
def test_what_is_no_text_of_a_configuration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a ModelConfig as text") as caught:
        read_text(text.encode("latin-1"), "m", NOWHERE)
    assert caught.value.field == "config.pbtxt"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "1" * 10_000, "[" * 100_000, '{"a":' * 50_000, "{" + " " * MAX_BYTES]
)
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_json(text, "m")
    assert caught.value.field == "parameters['config']"
