"""tritonclient over HTTP, as it is on PyPI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from tests.clients.conftest import Serving

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.ones((2, 3), np.float32)
PREFIX = "http-"  # apart from the models that other tests load
ADD = PREFIX + "add"


@pytest.fixture(scope="module")
def client(serving: Serving) -> Iterator[Any]:
    with triton.InferenceServerClient(serving.http, concurrency=8) as client:
        for name, data in serving.models.items():
            client.load_model(PREFIX + name, config="{}", files={"file:1/model.onnx": data})
        yield client
        for name in serving.models:
            client.unload_model(PREFIX + name)


def inputs(*, binary: bool = True, **values: Any) -> list[Any]:
    types = {"float32": "FP32", "float16": "FP16", "object": "BYTES"}
    made = []
    for name, value in values.items():
        each = triton.InferInput(name, list(value.shape), types[str(value.dtype)])
        each.set_data_from_numpy(value, binary_data=binary)
        made.append(each)
    return made


def texts(found: Any) -> list[str]:
    """BYTES, which come as text in JSON and as bytes otherwise."""
    return [each.decode() if isinstance(each, bytes) else str(each) for each in found.tolist()]


def test_the_server_is_live_and_ready(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    metadata = client.get_server_metadata()
    assert metadata["name"] == "headrace"
    assert "statistics" in metadata["extensions"]


def test_a_model_is_described(client: Any) -> None:
    assert client.is_model_ready(ADD)
    assert client.is_model_ready(ADD, "1")
    assert not client.is_model_ready(ADD, "2")
    assert not client.is_model_ready("nobody")
    metadata = client.get_model_metadata(ADD)
    assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [2, 3]}
    (output,) = client.get_model_config(ADD)["output"]
    assert (output["name"], output["data_type"], output["dims"]) == ("z", "TYPE_FP32", [2, 3])


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary_output", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_an_inference(
    client: Any, binary: bool, binary_output: bool, algorithm: str | None
) -> None:
    result = client.infer(
        ADD,
        inputs(binary=binary, x=X, y=Y),
        outputs=[triton.InferRequestedOutput("z", binary_data=binary_output)],
        request_id="a",
        priority=1,
        timeout=60_000_000,
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    np.testing.assert_array_equal(result.as_numpy("z"), X + Y)
    assert result.get_response()["id"] == "a"


def test_inferences_at_a_time(client: Any) -> None:
    requests = [client.async_infer(ADD, inputs(x=X + k, y=Y)) for k in range(20)]
    for k, request in enumerate(requests):
        np.testing.assert_array_equal(request.get_result().as_numpy("z"), X + k + Y)


def test_all_outputs_come_if_none_is_asked_for(client: Any) -> None:
    result = client.infer(ADD, inputs(x=X, y=Y))
    np.testing.assert_array_equal(result.as_numpy("z"), X + Y)


def test_a_large_reply_comes_deflated(client: Any) -> None:
    x = np.ones((300, 300), np.float32)
    for algorithm in ("gzip", "deflate"):
        result = client.infer(
            PREFIX + "double",
            inputs(x=x),
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        np.testing.assert_array_equal(result.as_numpy("y"), x + x)


@pytest.mark.parametrize("binary", [True, False])
def test_classes(client: Any, binary: bool) -> None:
    wanted = [triton.InferRequestedOutput("z", binary_data=binary, class_count=2)]
    result = client.infer(ADD, inputs(x=X, y=Y), outputs=wanted)
    assert texts(result.as_numpy("z")) == ["6.000000:5", "5.000000:4"]


@pytest.mark.parametrize("binary", [True, False])
def test_text(client: Any, binary: bool) -> None:
    sent = inputs(binary=binary, x=np.array(["a", "größer", ""], object))
    wanted = [triton.InferRequestedOutput("y", binary_data=binary)]
    result = client.infer(PREFIX + "text", sent, outputs=wanted)
    assert texts(result.as_numpy("y")) == ["a", "größer", ""]


def test_half_precision(client: Any) -> None:
    half = np.array([1.5, 2], np.float16)
    result = client.infer(PREFIX + "half", inputs(x=half)).as_numpy("y")
    np.testing.assert_array_equal(result, half + half)
    values = np.array([1.5, -2], np.float32)
    each = triton.InferInput("x", [2], "BF16")
    each.set_data_from_numpy(values)
    result = client.infer(PREFIX + "brain", [each]).as_numpy("y")
    np.testing.assert_array_equal(result, values)


def test_an_error_is_an_exception_with_its_status(client: Any) -> None:
    with pytest.raises(InferenceServerException) as missing:
        client.infer(ADD, inputs(x=X))
    assert missing.value.status() == "400"
    assert "'y'" in missing.value.message()
    with pytest.raises(InferenceServerException) as unknown:
        client.infer("nobody", inputs(x=X))
    assert unknown.value.status() == "404"
    with pytest.raises(InferenceServerException, match="temperature"):
        client.infer(ADD, inputs(x=X, y=Y), parameters={"temperature": 1})


def test_statistics_count_what_was_asked(client: Any) -> None:
    def count() -> int:
        (stats,) = client.get_inference_statistics(ADD)["model_stats"]
        return int(stats["inference_stats"]["success"]["count"])

    before = count()
    for _ in range(5):
        client.infer(ADD, inputs(x=X, y=Y))
    assert count() == before + 5
    assert len(client.get_inference_statistics()["model_stats"]) > 1


def test_the_repository(client: Any, serving: Serving) -> None:
    name, file = PREFIX + "brought", {"file:1/model.onnx": serving.models["add"]}
    client.load_model(name, config=json.dumps({"backend": "onnxruntime"}), files=file)
    ready = {"name": name, "version": "1", "state": "READY", "reason": ""}
    assert ready in client.get_model_repository_index()
    client.unload_model(name)
    assert not client.is_model_ready(name)
    assert ready not in client.get_model_repository_index()


def test_a_sequence_keeps_its_state(client: Any, serving: Serving) -> None:
    name, file = PREFIX + "kept", {"file:1/model.onnx": serving.models["keeper"]}
    state = {"input_name": "before", "output_name": "after", "data_type": "TYPE_FP32", "dims": [1]}
    config = json.dumps({"sequence_batching": {"state": [state]}})
    client.load_model(name, config=config, files=file)
    one, found = np.ones(1, np.float32), []
    for start, end in ((True, False), (False, False), (False, True)):
        result = client.infer(
            name, inputs(x=one), sequence_id=7, sequence_start=start, sequence_end=end
        )
        found.append(float(result.as_numpy("y")[0]))
    assert found == [1, 2, 3]
    client.unload_model(name)


def test_settings(client: Any) -> None:
    assert client.get_log_settings()["log_error"] is True
    assert client.update_log_settings({"log_info": True})["log_info"] is True
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.get_trace_settings(ADD)["trace_level"] == ["OFF"]
    with pytest.raises(InferenceServerException) as refused:
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    assert refused.value.status() == "501"


def test_memory_of_a_gpu_is_refused(client: Any) -> None:
    assert client.get_cuda_shared_memory_status() == []
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException) as refused:
        client.register_cuda_shared_memory("gpu", b"handle", 0, 8)
    assert refused.value.status() == "501"


def test_shared_memory(client: Any) -> None:
    given = shm.create_shared_memory_region("given", "/headrace_http_in", 2 * X.nbytes)
    taken = shm.create_shared_memory_region("taken", "/headrace_http_out", X.nbytes)
    try:
        shm.set_shared_memory_region(given, [X, Y])
        client.register_system_shared_memory("given", "/headrace_http_in", 2 * X.nbytes)
        client.register_system_shared_memory("taken", "/headrace_http_out", X.nbytes)
        (status,) = client.get_system_shared_memory_status("given")
        assert (status["key"], status["byte_size"]) == ("/headrace_http_in", 2 * X.nbytes)
        sent = [triton.InferInput(name, [2, 3], "FP32") for name in "xy"]
        for index, each in enumerate(sent):
            each.set_shared_memory("given", X.nbytes, index * X.nbytes)
        wanted = triton.InferRequestedOutput("z")
        wanted.set_shared_memory("taken", X.nbytes)
        output = client.infer(ADD, sent, outputs=[wanted]).get_output("z")
        assert output == {"name": "z", "datatype": "FP32", "shape": [2, 3]}
        found = shm.get_contents_as_numpy(taken, np.float32, [2, 3])
        np.testing.assert_array_equal(found, X + Y)
        client.unregister_system_shared_memory("given")
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []
    finally:
        shm.destroy_shared_memory_region(given)
        shm.destroy_shared_memory_region(taken)
