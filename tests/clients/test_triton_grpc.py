"""tritonclient over gRPC, as it is on PyPI: synchronous, asyncio and streaming."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from tests.clients.conftest import Serving

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def client(serving: Serving) -> Iterator[Any]:
    with triton.InferenceServerClient(serving.grpc) as client:
        for name, data in serving.models.items():
            load(client, name, data)
        yield client


def load(client: Any, name: str, data: bytes, **config: Any) -> None:
    client.load_model(name, config=json.dumps(config), files={"file:1/model.onnx": data})


def inputs(kind: Any = triton, **values: Any) -> list[Any]:
    types = {"float32": "FP32", "float16": "FP16", "object": "BYTES"}
    made = []
    for name, value in values.items():
        each = kind.InferInput(name, list(value.shape), types[str(value.dtype)])
        each.set_data_from_numpy(value)
        made.append(each)
    return made


def both() -> list[Any]:
    return inputs(x=X, y=Y)


def test_the_server_is_live_and_ready(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    metadata = client.get_server_metadata(as_json=True)
    assert metadata["name"] == "headrace"
    assert "statistics" in metadata["extensions"]


def test_a_model_is_described(client: Any) -> None:
    assert client.is_model_ready("add")
    assert not client.is_model_ready("nobody")
    metadata = client.get_model_metadata("add", as_json=True)
    assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": ["2", "3"]}
    config = client.get_model_config("add", as_json=True)["config"]
    assert config["output"] == [{"name": "z", "data_type": "TYPE_FP32", "dims": ["2", "3"]}]


def test_an_inference(client: Any) -> None:
    result = client.infer(
        "add",
        both(),
        outputs=[triton.InferRequestedOutput("z")],
        request_id="a",
        priority=1,
        timeout=10_000_000,
        client_timeout=60,
    )
    np.testing.assert_array_equal(result.as_numpy("z"), X + Y)
    assert result.get_response().id == "a"
    assert result.get_output("z").datatype == "FP32"


def test_an_inference_that_is_called_back(client: Any) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.async_infer("add", both(), lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=60)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("z"), X + Y)


def test_classes(client: Any) -> None:
    wanted = [triton.InferRequestedOutput("z", class_count=2)]
    assert client.infer("add", both(), outputs=wanted).as_numpy("z").tolist() == [
        b"6.000000:5",
        b"5.000000:4",
    ]


def test_half_precision_and_text(client: Any) -> None:
    half = np.array([1.5, 2], np.float16)
    result = client.infer("half", inputs(x=half)).as_numpy("y")
    np.testing.assert_array_equal(result, half + half)
    text = np.array(["a", "größer", ""], object)
    result = client.infer("text", inputs(x=text)).as_numpy("y")
    assert [each.decode() for each in result] == ["a", "größer", ""]


def test_bfloat16(client: Any) -> None:
    values = np.array([1.5, -2], np.float32)
    each = triton.InferInput("x", [2], "BF16")
    each.set_data_from_numpy(values)
    np.testing.assert_array_equal(client.infer("brain", [each]).as_numpy("y"), values)


def test_an_error_is_an_exception_with_its_status(client: Any) -> None:
    with pytest.raises(InferenceServerException) as missing:
        client.infer("add", both()[:1])
    assert missing.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "input 'y' is missing" in missing.value.message()
    with pytest.raises(InferenceServerException) as unknown:
        client.infer("nobody", both())
    assert unknown.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(InferenceServerException, match="'temperature'"):
        client.infer("add", both(), parameters={"temperature": 1})


def test_a_stream_answers_each_request(client: Any) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(20):
        client.async_stream_infer(
            "add", both(), request_id=str(number), enable_empty_final_response=number % 2 == 0
        )
    client.async_stream_infer("nobody", both())
    found = [answers.get(timeout=60) for _ in range(21)]
    client.stop_stream()
    errors = [error for _, error in found if error is not None]
    assert len(errors) == 1
    assert "nobody" in errors[0].message()
    results = [result for result, error in found if error is None]
    assert {each.get_response().id for each in results} == set(map(str, range(20)))
    for each in results:
        np.testing.assert_array_equal(each.as_numpy("z"), X + Y)


def test_asyncio_does_the_same(serving: Serving, client: Any) -> None:
    async def requests() -> Any:
        for number in range(5):
            yield {"model_name": "add", "inputs": both(), "request_id": str(number)}

    async def run() -> None:
        async with triton_aio.InferenceServerClient(serving.grpc) as aio:
            assert await aio.is_server_ready()
            assert await aio.is_model_ready("add")
            results = await asyncio.gather(*(aio.infer("add", both()) for _ in range(10)))
            for result in results:
                np.testing.assert_array_equal(result.as_numpy("z"), X + Y)
            answered = aio.stream_infer(requests())
            ids = set()
            async for result, error in answered:
                assert error is None
                ids.add(result.get_response().id)
            assert ids == set("01234")

    asyncio.run(run())


def test_statistics_are_those_of_the_requests(serving: Serving, client: Any) -> None:
    load(client, "counted", serving.models["add"])
    for _ in range(7):
        client.infer("counted", both())
    (stats,) = client.get_inference_statistics("counted").model_stats
    assert (stats.inference_count, stats.inference_stats.success.count) == (7, 7)
    client.unload_model("counted")
    with pytest.raises(InferenceServerException):
        client.get_inference_statistics("counted")


def test_the_repository_is_listed_and_models_go(serving: Serving, client: Any) -> None:
    load(
        client,
        "passing",
        serving.models["add"],
        parameters={"DEVICE": {"string_value": "TEMPLATE"}},
    )
    listed = client.get_model_repository_index(as_json=True)["models"]
    assert {"name": "passing", "version": "1", "state": "READY"} in listed
    client.unload_model("passing", unload_dependents=True)
    assert not client.is_model_ready("passing")


def test_a_batch_size_makes_the_first_dimension_the_batchs(serving: Serving, client: Any) -> None:
    load(client, "batched", serving.models["double"], max_batch_size=4, dynamic_batching={})
    config = client.get_model_config("batched", as_json=True)["config"]
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, ["-1"])
    result = client.infer("batched", inputs(x=X)).as_numpy("y")
    np.testing.assert_array_equal(result, 2 * X)
    client.unload_model("batched")


def test_a_sequence_keeps_its_state(serving: Serving, client: Any) -> None:
    states = [{"input_name": "before", "output_name": "after"}]
    load(client, "kept", serving.models["keeper"], sequence_batching={"state": states})
    one = np.array([1], np.float32)
    sums = [
        client.infer(
            "kept",
            inputs(x=one),
            sequence_id=sequence,
            sequence_start=step == 0,
            sequence_end=step == 2,
        ).as_numpy("y")[0]
        for step in range(3)
        for sequence in (5, "text")
    ]
    assert sums == [1, 1, 2, 2, 3, 3]
    with pytest.raises(InferenceServerException):
        client.infer("kept", inputs(x=one), sequence_id=5)
    client.unload_model("kept")


def test_tensors_in_shared_memory(client: Any) -> None:
    region = shm.create_shared_memory_region("region", "/headrace_test_clients", 72)
    try:
        shm.set_shared_memory_region(region, [X, Y])
        client.register_system_shared_memory("region", "/headrace_test_clients", 72)
        assert "region" in client.get_system_shared_memory_status(as_json=True)["regions"]
        made = [triton.InferInput(name, [2, 3], "FP32") for name in ("x", "y")]
        for number, each in enumerate(made):
            each.set_shared_memory("region", 24, 24 * number)
        wanted = triton.InferRequestedOutput("z")
        wanted.set_shared_memory("region", 24, 48)
        client.infer("add", made, outputs=[wanted])
        found = shm.get_contents_as_numpy(region, np.float32, [2, 3], 48)
        np.testing.assert_array_equal(found, X + Y)
    finally:
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        shm.destroy_shared_memory_region(region)
    assert not client.get_system_shared_memory_status(as_json=True).get("regions")
    assert not client.get_cuda_shared_memory_status(as_json=True).get("regions")
    with pytest.raises(InferenceServerException) as caught:
        client.register_cuda_shared_memory("region", b"", 0, 1)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_settings(client: Any) -> None:
    assert client.get_trace_settings(as_json=True)["settings"]["trace_level"] == {"value": ["OFF"]}
    settings = client.update_log_settings({"log_verbose_level": 0}, as_json=True)["settings"]
    assert settings["log_info"] == {"bool_param": True}
