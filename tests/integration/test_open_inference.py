"""The Open Inference Protocol over a socket, with stubs generated from our .proto."""

from __future__ import annotations

import json
import queue
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from google.protobuf import json_format

from headrace.oip import open_inference_pb2 as oip
from headrace.oip import open_inference_pb2_grpc as rpc
from headrace.testing import networks
from headrace.testing.case import Case, parse
from tests.integration.harness import BASIC, CALL_SECONDS, Server, assert_settled, until
from tests.support.open_inference import (
    infer_request,
    outputs_of,
    parameters,
    requested,
    with_external_weight,
)
from tests.support.stateful import SUM_STATES, TALLY

CASE = networks.add()
MODEL = CASE.model.SerializeToString()
X, Y = (np.asarray(CASE.inputs[name]) for name in ("x", "y"))
SUM: Any = X + Y
LARGE = np.random.default_rng(1).random((64, 1024), np.float32)
DOUBLE = parse("double (float[n,m] x) => (float[n,m] y) { y = Add(x, x) }")
TYPES = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
    "uint32": np.uint32,
    "int32": np.int32,
    "uint64": np.uint64,
    "int64": np.int64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float": np.float32,
    "double": np.float64,
}
Refused = grpc.StatusCode


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for version in "12":
        (folder / "stored" / version).mkdir(parents=True)
        (folder / "stored" / version / "model.onnx").write_bytes(MODEL)
    return folder


@pytest.fixture(scope="module")
def serving(repository: Path) -> Iterator[Server]:
    options = ("--allow-client-shared-memory", "--model-repository", str(repository))
    with Server("--devices", "CPU,TEMPLATE,BATCH,HETERO,MULTI,AUTO", *options) as running:
        running.load(CASE, "CPU", "open")
        yield running
        assert_settled(running)
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture(scope="module")
def stub(serving: Server) -> Any:
    return rpc.GRPCInferenceServiceStub(serving.channel)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def model() -> str:
    return "open"


def request(model: str, **fields: Any) -> Any:
    return infer_request(model, CASE.inputs, **fields)


def refused(call: Any, message: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(message, timeout=CALL_SECONDS)
    return caught.value


class Stream:
    """One ModelStreamInfer, written and read by the test's own thread."""

    def __init__(self, stub: Any, **metadata: str) -> None:
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = stub.ModelStreamInfer(
            iter(self._outgoing.get, None), timeout=CALL_SECONDS, metadata=list(metadata.items())
        )

    def send(self, *requests: Any) -> None:
        for each in requests:
            self._outgoing.put(each)

    def end(self) -> list[Any]:
        """Everything that has not been read."""
        self._outgoing.put(None)
        return list(self.call)


def in_flight(server: Server) -> int:
    """Requests that CPU has."""
    names = ("NUMBER_OF_EXEC_INFER_REQUESTS", "NUMBER_OF_WAITING_INFER_REQUESTS")
    return sum(int(server.metric(name, "CPU")) for name in names)


def load(stub: Any, name: str, files: dict[str, bytes], **config: Any) -> None:
    load_as(stub, name, files, json.dumps(config) if config else "")


def load_as(stub: Any, name: str, files: dict[str, bytes], config: str) -> None:
    given: dict[str, Any] = {f"file:{path}": data for path, data in files.items()}
    if config:
        given["config"] = config
    message = oip.RepositoryModelLoadRequest(
        model_name=name, parameters=parameters(given, oip.ModelRepositoryParameter)
    )
    stub.RepositoryModelLoad(message, timeout=CALL_SECONDS)


def unload(stub: Any, name: str) -> None:
    stub.RepositoryModelUnload(
        oip.RepositoryModelUnloadRequest(model_name=name), timeout=CALL_SECONDS
    )


# -- the server and its models --


def test_the_server_is_live_and_ready_and_says_what_it_is(stub: Any) -> None:
    assert stub.ServerLive(oip.ServerLiveRequest()).live
    assert stub.ServerReady(oip.ServerReadyRequest()).ready
    metadata = stub.ServerMetadata(oip.ServerMetadataRequest())
    assert metadata.name == "headrace"
    assert "system_shared_memory" in metadata.extensions


def test_a_model_is_a_network(stub: Any, model: str) -> None:
    assert stub.ModelReady(oip.ModelReadyRequest(name=model)).ready
    metadata = stub.ModelMetadata(oip.ModelMetadataRequest(name=model))
    assert (metadata.name, list(metadata.versions), metadata.platform) == (model, ["1"], "onnx")
    assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [
        ("x", "FP32", [2, 3]),
        ("y", "FP32", [2, 3]),
    ]
    config = stub.ModelConfig(oip.ModelConfigRequest(name=model)).config
    assert [(each.name, each.data_type, list(each.dims)) for each in config.output] == [
        ("z", oip.TYPE_FP32, [2, 3])
    ]
    assert (config.max_batch_size, config.instance_group[0].kind) == (
        0,
        oip.ModelInstanceGroup.KIND_CPU,
    )


def test_what_is_not_there_is_not_ready_so_that_clients_can_wait_for_it(
    stub: Any, model: str
) -> None:
    assert stub.ModelReady(oip.ModelReadyRequest(name=model, version="1")).ready
    for name, version in (("nobody", ""), ("nobody", "1"), (model, "7"), (model, "x"), ("", "")):
        assert not stub.ModelReady(oip.ModelReadyRequest(name=name, version=version)).ready


def test_a_version_that_is_not_there_is_not_found(stub: Any, model: str) -> None:
    for version in ("2", "x"):
        error = refused(stub.ModelInfer, request(model, model_version=version))
        assert error.code() is Refused.NOT_FOUND
        assert not stub.ModelReady(oip.ModelReadyRequest(name=model, version=version)).ready
    ask = oip.ModelMetadataRequest(name="nobody")
    assert refused(stub.ModelMetadata, ask).code() is Refused.NOT_FOUND


# -- inference --


def test_an_inference_gives_what_the_network_gives(stub: Any, model: str) -> None:
    reply = stub.ModelInfer(request(model, id="a"), timeout=CALL_SECONDS)
    assert (reply.model_name, reply.model_version, reply.id) == (model, "1", "a")
    np.testing.assert_array_equal(outputs_of(reply)["z"], SUM)


@pytest.mark.parametrize("name", TYPES)
def test_every_numeric_datatype_comes_back_as_it_went(
    serving: Server, stub: Any, name: str
) -> None:
    case = networks.typed(TYPES[name], name)
    serving.load(case, "TEMPLATE", "typed")
    try:
        reply = stub.ModelInfer(infer_request("typed", case.inputs), timeout=CALL_SECONDS)
        x, y = np.asarray(case.inputs["x"]), np.asarray(case.inputs["y"])
        expected = x & y if name == "bool" else x + y
        found = outputs_of(reply)["z"]
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    finally:
        serving.unload("typed")


def test_text_comes_back_as_it_went(serving: Server, stub: Any) -> None:
    case = networks.string_identity()
    serving.load(case, "CPU", "text")
    reply = stub.ModelInfer(infer_request("text", case.inputs), timeout=CALL_SECONDS)
    assert outputs_of(reply)["y"].tolist() == ["a", "", "größer", "x y"]
    typed = infer_request("text", case.inputs)
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.bytes_contents.extend([b"a", b"", "größer".encode(), b"x y"])
    assert stub.ModelInfer(typed, timeout=CALL_SECONDS).raw_output_contents == (
        reply.raw_output_contents
    )
    serving.unload("text")


def test_large_tensors_and_many_typed_elements_arrive(serving: Server, stub: Any) -> None:
    load(stub, "double", {"1/model.onnx": DOUBLE.SerializeToString()})
    reply = stub.ModelInfer(infer_request("double", {"x": LARGE}), timeout=CALL_SECONDS)
    np.testing.assert_array_equal(outputs_of(reply)["y"], 2 * LARGE)
    typed = infer_request("double", {"x": LARGE})
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.fp32_contents.extend(LARGE.reshape(-1).tolist())
    reply = stub.ModelInfer(typed, timeout=CALL_SECONDS)
    np.testing.assert_array_equal(outputs_of(reply)["y"], 2 * LARGE)
    unload(stub, "double")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda each: each.inputs[0].shape.append(2), "inputs['x']: has 24 bytes"),
        (lambda each: setattr(each.inputs[0], "name", "q"), "no input 'q'"),
        (lambda each: setattr(each.inputs[0], "datatype", "FP64"), "inputs['x']: has 24 bytes"),
        (lambda each: setattr(each.inputs[0], "datatype", "float32"), "inputs['x'].datatype"),
        (lambda each: each.raw_input_contents.pop(), "no entry in raw_input_contents"),
        (lambda each: each.inputs.pop(), "raw_input_contents: has 2 entries for 1 inputs"),
        (lambda each: each.outputs.append(requested("q")), "no output 'q'"),
        (
            lambda each: each.inputs[0].contents.fp32_contents.append(1),
            "inputs['x'].contents: must be empty",
        ),
        (
            lambda each: each.parameters["temperature"].CopyFrom(oip.InferParameter(int64_param=1)),
            "parameters['temperature']: is not a parameter here",
        ),
    ],
)
def test_a_wrong_request_is_refused_and_says_what_is_wrong(
    stub: Any, model: str, change: Any, why: str
) -> None:
    message = request(model)
    change(message)
    error = refused(stub.ModelInfer, message)
    assert error.code() is Refused.INVALID_ARGUMENT
    assert why in error.details()


def test_garbage_is_refused(serving: Server) -> None:
    call = serving.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    error = refused(call, b"\xff")
    assert error.code() is Refused.INVALID_ARGUMENT
    assert "of the type inference.ModelInferRequest" in error.details()


def test_a_timeout_in_the_request_ends_it(serving: Server, stub: Any) -> None:
    case = networks.endless()
    serving.load(case, "CPU", "endless")
    message = infer_request("endless", case.inputs, parameters=parameters({"timeout": 50_000}))
    assert refused(stub.ModelInfer, message).code() is Refused.DEADLINE_EXCEEDED
    call = stub.ModelInfer.future(infer_request("endless", case.inputs), timeout=CALL_SECONDS)
    until(lambda: in_flight(serving) == 1)
    call.cancel()
    assert_settled(serving)
    (stats,) = stub.ModelStatistics(oip.ModelStatisticsRequest(name="endless")).model_stats
    assert stats.inference_stats.fail.count == 2
    assert stats.response_stats["0"].cancel.count == 1
    serving.unload("endless")


def test_statistics_are_exact(stub: Any) -> None:
    load(stub, "counted", {"1/model.onnx": MODEL})
    for _ in range(5):
        stub.ModelInfer(request("counted"), timeout=CALL_SECONDS)
    ask = oip.ModelStatisticsRequest(name="counted")
    (stats,) = stub.ModelStatistics(ask).model_stats
    found = stats.inference_stats
    assert (stats.inference_count, stats.execution_count, found.success.count) == (5, 5, 5)
    assert found.success.ns > found.compute_infer.ns > 0
    assert stats.last_inference > 1_600_000_000_000
    unload(stub, "counted")


PICK = parse("""pick (int64[n] at) => (float[n] y) {
    row = Constant<value_floats = [1.0, 2.0, 3.0]>()
    y = Gather(row, at)
}""")
FATES = ("good", "good", "good", "fails", "refused", "late")


def picking(fate: str, rows: int, number: int) -> Any:
    """A request of the network `pick` with so many rows, for which its fate is certain, but for a
    late one's: it may be quick enough."""
    at = np.full(rows, 7 if fate == "fails" else 1, np.int64)
    message = infer_request("picked", {"at": at}, id=f"{fate} {rows} {number}")
    if fate == "refused":
        message.inputs[0].name = "to"
    if fate == "late":
        message.parameters["timeout"].int64_param = 1
    return message


def by_outcome(server: Server) -> dict[str, int]:
    """The requests to the network by their outcome, as metrics count them."""
    found = Counter[str]()
    for (name, labels), value in server.scrape().items():
        labelled = dict(labels)
        if name == "headrace_network_requests_total" and labelled["network"] == "picked":
            found[labelled["outcome"]] += int(value)
    return found


@pytest.mark.parametrize("device", ["CPU", "BATCH:CPU(8)"])
def test_statistics_are_those_of_a_plain_model_whatever_becomes_of_the_requests(
    serving: Server, stub: Any, device: str
) -> None:
    serving.load(Case("picked", PICK, {}), device)
    before = by_outcome(serving)
    dice = random.Random(1)

    def ask(sent: list[Any]) -> Counter[tuple[str, int, str]]:
        stream = Stream(stub)
        stream.send(*sent)
        found = Counter[tuple[str, int, str]]()
        for answer in stream.end():
            fate, rows, _ = answer.infer_response.id.split()
            found[fate, int(rows), answer.error_message] += 1
        return found

    plans = [
        [picking(dice.choice(FATES), dice.randint(1, 4), number) for number in range(60)]
        for _ in range(4)
    ]
    with ThreadPoolExecutor(4) as executor:
        answers = sum(executor.map(ask, plans), Counter())
    assert answers.total() == 240
    good = {key: count for key, count in answers.items() if not key[2]}
    succeeded, rows = sum(good.values()), sum(key[1] * count for key, count in good.items())
    inferences = rows if device.startswith("BATCH") else succeeded
    failed = (
        answers.total()
        - succeeded
        - sum(count for key, count in answers.items() if key[0] == "refused")
    )
    assert {key[0] for key in good} <= {"good", "late"}
    ask_for = oip.ModelStatisticsRequest(name="picked")
    (stats,) = stub.ModelStatistics(ask_for).model_stats
    found = stats.inference_stats
    assert (found.success.count, found.fail.count, stats.inference_count) == (
        succeeded,
        failed,
        inferences,
    )
    for stage in (found.queue, found.compute_input, found.compute_infer, found.compute_output):
        assert stage.count == succeeded
    assert stats.execution_count == sum(each.compute_infer.count for each in stats.batch_stats)
    ran = sum(each.batch_size * each.compute_infer.count for each in stats.batch_stats)
    assert ran == inferences if device == "CPU" else ran >= rows

    ended = partial(serving.total, "headrace_grpc_requests_total", method="ModelStreamInfer")
    streams = ended()
    cut = Stream(stub)
    cut.send(*(picking("good", 1, number) for number in range(50)))
    next(cut.call)
    cut.call.cancel()  # how many have run by then is the server's to say
    until(lambda: ended() > streams, "the server was to hear of it")
    assert_settled(serving)
    outcomes = Counter(by_outcome(serving))
    outcomes.subtract(before)
    (stats,) = stub.ModelStatistics(ask_for).model_stats
    found = stats.inference_stats
    assert found.success.count == outcomes["completed"] > succeeded
    assert found.fail.count == sum(outcomes.values()) - outcomes["completed"]
    assert stats.response_stats["0"].cancel.count == outcomes["cancelled"]
    serving.unload("picked")


# -- streams --


def test_a_stream_answers_each_request_and_an_error_ends_itself_alone(
    stub: Any, model: str
) -> None:
    stream = Stream(stub)
    bad = request(model, id="bad")
    bad.inputs[0].name = "q"
    stream.send(request(model, id="a"), bad, request("nobody", id="c"), request(model, id="a"))
    answers = stream.end()
    assert len(answers) == 4
    errors = {each.infer_response.id: each.error_message for each in answers if each.error_message}
    assert set(errors) == {"bad", "c"}
    assert "no input 'q'" in errors["bad"]
    results = [each.infer_response for each in answers if not each.error_message]
    assert [each.id for each in results] == ["a", "a"]
    for each in results:
        np.testing.assert_array_equal(outputs_of(each)["z"], SUM)
        assert each.parameters["triton_final_response"].bool_param


def test_a_stream_whose_caller_asks_for_it_ends_with_the_status_of_the_first_error(
    stub: Any, model: str
) -> None:
    stream = Stream(stub, triton_grpc_error="true")
    stream.send(request(model, id="a"))
    assert next(stream.call).infer_response.id == "a"
    stream.send(request("nobody", id="b"), request(model, id="c"))
    with pytest.raises(grpc.RpcError) as caught:
        list(stream.call)  # the other one's reply may come before that
    assert caught.value.code() is Refused.NOT_FOUND
    assert "nobody" in caught.value.details()


def test_a_stream_takes_more_than_it_may_have_in_flight(stub: Any, model: str) -> None:
    stream = Stream(stub)
    stream.send(*(request(model, id=str(number)) for number in range(600)))
    answers = stream.end()
    assert sorted(int(each.infer_response.id) for each in answers) == list(range(600))
    assert not any(each.error_message for each in answers)


def test_a_stream_that_is_cancelled_ends_its_requests(serving: Server, stub: Any) -> None:
    case = networks.endless()
    serving.load(case, "CPU", "endless")
    stream = Stream(stub)
    stream.send(*(infer_request("endless", case.inputs) for _ in range(3)))
    until(lambda: in_flight(serving) == 3)
    stream.call.cancel()
    until(lambda: in_flight(serving) == 0)
    serving.unload("endless")


def test_garbage_on_a_stream_ends_it(serving: Server) -> None:
    call = serving.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    with pytest.raises(grpc.RpcError) as caught:
        next(call(iter([b"\xff"]), timeout=CALL_SECONDS))
    assert caught.value.code() is Refused.INVALID_ARGUMENT


# -- shared memory --


@pytest.mark.parametrize("on_stream", [False, True])
def test_tensors_lie_in_shared_memory(stub: Any, model: str, on_stream: bool) -> None:
    memory = SharedMemory(create=True, size=72)
    buffer: Any = memory.buf
    try:
        key, size = f"/{memory.name.lstrip('/')}", 24
        buffer[:24] = X.tobytes()
        buffer[24:48] = Y.tobytes()
        stub.SystemSharedMemoryRegister(
            oip.SystemSharedMemoryRegisterRequest(name="r", key=key, byte_size=72)
        )
        status = stub.SystemSharedMemoryStatus(oip.SystemSharedMemoryStatusRequest())
        assert (status.regions["r"].key, status.regions["r"].byte_size) == (key, 72)
        message = request(model)
        del message.raw_input_contents[:]
        for index, each in enumerate(message.inputs):
            place = {
                "shared_memory_region": "r",
                "shared_memory_offset": index * size,
                "shared_memory_byte_size": size,
            }
            for name, value in parameters(place).items():
                each.parameters[name].CopyFrom(value)
        place = {
            "shared_memory_region": "r",
            "shared_memory_offset": 48,
            "shared_memory_byte_size": size,
        }
        message.outputs.append(requested("z", **place))
        if on_stream:
            stream = Stream(stub)
            stream.send(message)
            (answer,) = stream.end()
            assert not answer.error_message
            reply = answer.infer_response
        else:
            reply = stub.ModelInfer(message, timeout=CALL_SECONDS)
        assert list(reply.raw_output_contents) == [b""]
        assert reply.outputs[0].parameters["shared_memory_byte_size"].int64_param == size
        result = np.frombuffer(bytes(buffer[48:72]), np.float32).reshape(2, 3)
        np.testing.assert_array_equal(result, SUM)
        message.outputs[0].parameters["shared_memory_offset"].int64_param = 64
        error = refused(stub.ModelInfer, message)
        assert error.code() is Refused.INVALID_ARGUMENT
        assert "region 'r' of 72 bytes" in error.details()
    finally:
        stub.SystemSharedMemoryUnregister(oip.SystemSharedMemoryUnregisterRequest(name="r"))
        del buffer
        memory.close()
        memory.unlink()


def test_requests_of_a_sequence_keep_their_order_wherever_their_inputs_lie(
    serving: Server, stub: Any
) -> None:
    """Bytes of a region are read on a thread, while the next request is there already."""
    serving.load(Case("tally", TALLY, {}), "CPU", config={"STATES": SUM_STATES})
    large, small = np.zeros((600, 1024), np.float32), np.ones((1, 1), np.float32)
    large[0, 0] = 1000
    place = {"shared_memory_region": "r", "shared_memory_byte_size": large.nbytes}
    messages: list[Any] = []
    expected: list[int] = []
    memory = SharedMemory(create=True, size=large.nbytes)
    buffer: Any = memory.buf
    try:
        buffer[: large.nbytes] = large.tobytes()
        key = f"/{memory.name.lstrip('/')}"
        stub.SystemSharedMemoryRegister(
            oip.SystemSharedMemoryRegisterRequest(name="r", key=key, byte_size=large.nbytes)
        )
        for number in range(12):
            given = {"sequence_id": 7, "sequence_start": not number, "sequence_end": number == 11}
            is_large = number % 3 == 0
            inputs = {"x": large if is_large else small}
            message = infer_request("tally", inputs, id=str(number))
            for name, value in parameters(given).items():
                message.parameters[name].CopyFrom(value)
            if is_large:
                del message.raw_input_contents[:]
                for name, value in parameters(place).items():
                    message.inputs[0].parameters[name].CopyFrom(value)
            messages.append(message)
            expected.append((1000 if is_large else 1) + (expected[-1] if expected else 0))
        stream = Stream(stub)
        stream.send(*messages)
        answers = {int(each.infer_response.id): each for each in stream.end()}
    finally:
        stub.SystemSharedMemoryUnregister(oip.SystemSharedMemoryUnregisterRequest(name="r"))
        del buffer
        memory.close()
        memory.unlink()
    assert not any(each.error_message for each in answers.values())
    assert [outputs_of(answers[number].infer_response)["y"][0] for number in range(12)] == expected
    serving.unload("tally")


def test_each_request_like_an_earlier_one_writes_its_output_to_shared_memory(
    stub: Any, model: str
) -> None:
    memory = SharedMemory(create=True, size=24)
    buffer: Any = memory.buf
    try:
        stub.SystemSharedMemoryRegister(
            oip.SystemSharedMemoryRegisterRequest(
                name="out", key=f"/{memory.name.lstrip('/')}", byte_size=24
            )
        )
        message = request(model)
        place = {"shared_memory_region": "out", "shared_memory_byte_size": 24}
        message.outputs.append(requested("z", **place))
        for _ in range(3):  # the third is read without parsing it
            buffer[:] = bytes(24)
            reply = stub.ModelInfer(message, timeout=CALL_SECONDS)
            assert list(reply.raw_output_contents) == [b""]
            result = np.frombuffer(bytes(buffer), np.float32).reshape(2, 3)
            np.testing.assert_array_equal(result, SUM)
    finally:
        stub.SystemSharedMemoryUnregister(oip.SystemSharedMemoryUnregisterRequest(name="out"))
        del buffer
        memory.close()
        memory.unlink()


def test_a_region_that_nobody_has_registered_is_refused(stub: Any, model: str) -> None:
    place = {"shared_memory_region": "nobody", "shared_memory_byte_size": 24}
    error = refused(stub.ModelInfer, request(model, outputs=[requested("z", **place)]))
    assert error.code() is Refused.NOT_FOUND
    assert "nobody" in error.details()
    stub.SystemSharedMemoryUnregister(oip.SystemSharedMemoryUnregisterRequest(name="nobody"))


def test_without_the_option_shared_memory_is_refused_by_its_name(server: Server) -> None:
    off: Any = rpc.GRPCInferenceServiceStub(server.channel)  # type: ignore[no-untyped-call]
    message = oip.SystemSharedMemoryRegisterRequest(name="r", key="/r", byte_size=1)
    error = refused(off.SystemSharedMemoryRegister, message)
    assert error.code() is Refused.FAILED_PRECONDITION
    assert "--allow-client-shared-memory" in error.details()


def test_there_is_no_memory_of_a_gpu(stub: Any) -> None:
    assert not stub.CudaSharedMemoryStatus(oip.CudaSharedMemoryStatusRequest()).regions
    stub.CudaSharedMemoryUnregister(oip.CudaSharedMemoryUnregisterRequest())
    error = refused(stub.CudaSharedMemoryRegister, oip.CudaSharedMemoryRegisterRequest(name="r"))
    assert error.code() is Refused.UNIMPLEMENTED


# -- the repository --


def index(stub: Any, **fields: Any) -> dict[tuple[str, str], str]:
    reply = stub.RepositoryIndex(oip.RepositoryIndexRequest(**fields), timeout=CALL_SECONDS)
    return {(each.name, each.version): each.state for each in reply.models}


def test_a_load_chooses_the_versions_that_the_configuration_names(stub: Any) -> None:
    assert index(stub)["stored", "1"] == "UNAVAILABLE"
    load(stub, "stored", {}, version_policy={"specific": {"versions": [1]}})
    found = index(stub)
    assert (found["stored", "1"], found["stored", "2"]) == ("READY", "UNAVAILABLE")
    assert (
        refused(stub.ModelInfer, request("stored", model_version="2")).code() is Refused.NOT_FOUND
    )
    load(stub, "stored", {}, version_policy={"all": {}})
    assert index(stub, ready=True).keys() >= {("stored", "1"), ("stored", "2")}
    reply = stub.ModelInfer(request("stored", model_version="1"), timeout=CALL_SECONDS)
    assert reply.model_version == "1"
    load(stub, "stored", {})
    assert not stub.ModelReady(oip.ModelReadyRequest(name="stored", version="1")).ready
    assert stub.ModelReady(oip.ModelReadyRequest(name="stored")).ready


def test_a_load_takes_files_and_a_device(stub: Any) -> None:
    files = {"3/model.onnx": MODEL, "labels.txt": b"cat\ndog\n"}
    load(
        stub,
        "filed",
        files,
        parameters={"DEVICE": {"string_value": "TEMPLATE"}},
        output=[
            {"name": "z", "data_type": "TYPE_FP32", "dims": [2, 3], "label_filename": "labels.txt"}
        ],
    )
    config = stub.ModelConfig(oip.ModelConfigRequest(name="filed")).config
    assert config.parameters["DEVICE"].string_value == "TEMPLATE"
    message = request("filed", outputs=[requested("z", classification=1)])
    reply = stub.ModelInfer(message, timeout=CALL_SECONDS)
    assert reply.model_version == "3"
    (best,) = outputs_of(reply)["z"].tolist()
    value, place, *label = best.split(":")
    assert int(place) == int(np.argmax(SUM))
    assert float(value) == pytest.approx(float(np.max(SUM)), abs=1e-6)
    assert label == ["cat", "dog"][int(place) : int(place) + 1]
    unload(stub, "filed")
    assert not any(name == "filed" for name, _ in index(stub))


def test_a_load_takes_external_data_beside_the_model(stub: Any) -> None:
    proto = with_external_weight(CASE.model, "weights/y.bin", offset=4)
    files = {
        "1/model.onnx": MODEL,
        "2/model.onnx": proto.SerializeToString(),
        "2/weights/y.bin": bytes(4) + Y.tobytes(),
    }
    load(stub, "beside", files)
    message = infer_request("beside", {"x": X})
    reply = stub.ModelInfer(message, timeout=CALL_SECONDS)
    assert reply.model_version == "2"
    np.testing.assert_array_equal(outputs_of(reply)["z"], SUM)
    unload(stub, "beside")


ROWS = parse("rows (float[n,3] x) => (float[n,3] z) { z = Relu(x) }").SerializeToString()
KEPT = parse("""
    kept (float[1] x, float[1] h) => (float[1] y, float[1] hn) {
        y = Add(x, h)
        hn = Identity(y)
    }
""").SerializeToString()
STATE = {"input_name": "h", "output_name": "hn"}


def state(**said: Any) -> Any:
    return {"sequence_batching": {"state": [{**STATE, **said}]}}


def on(device: str, **keys: Any) -> Any:
    values = {"DEVICE": device, **keys}
    return {"parameters": {key: {"string_value": each} for key, each in values.items()}}


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (ROWS, {}),
        (ROWS, on("TEMPLATE")),
        (ROWS, {"max_batch_size": 8, "dynamic_batching": {}}),
        (
            ROWS,
            {
                "max_batch_size": 8,
                "dynamic_batching": {
                    "preferred_batch_size": [4],
                    "max_queue_delay_microseconds": 5000,
                },
            },
        ),
        (ROWS, {"instance_group": [{"kind": "KIND_CPU", "count": 1}]}),
        (ROWS, on("HETERO:TEMPLATE,CPU", **{"CPU.NUM_STREAMS": "1"})),
        (ROWS, on("MULTI:CPU,TEMPLATE")),
        (ROWS, on("AUTO", PERFORMANCE_HINT="LATENCY")),
        (ROWS, on("AUTO:-TEMPLATE")),
        (KEPT, state()),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value)[:80],
)
def test_the_configuration_that_the_server_gives_can_be_loaded_again(
    stub: Any, model: bytes, config: Any
) -> None:
    given = oip.ModelConfigRequest(name="again")
    load(stub, "again", {"1/model.onnx": model}, **config)
    first = stub.ModelConfig(given).config
    load_as(stub, "again", {"1/model.onnx": model}, json_format.MessageToJson(first))
    assert stub.ModelConfig(given).config == first
    delay = config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0)
    assert first.dynamic_batching.max_queue_delay_microseconds == delay
    unload(stub, "again")


def test_labels_a_warm_up_and_a_policy_are_told_and_files_need_not_be_sent_again(stub: Any) -> None:
    warm_up = {"name": "w", "count": 2, "batch_size": 4}
    warm_up["inputs"] = {"x": {"data_type": "TYPE_FP32", "dims": [3], "zero_data": True}}
    config = {
        "max_batch_size": 8,
        "version_policy": {"specific": {"versions": [1, 2]}},
        "output": [{"name": "z", "label_filename": "names.txt"}],
        "model_warmup": [warm_up],
    }
    models = {"1/model.onnx": ROWS, "2/model.onnx": ROWS}
    given = oip.ModelConfigRequest(name="again")
    load(stub, "again", {**models, "names.txt": b"cat\ndog\nowl\n"}, **config)
    first = stub.ModelConfig(given).config
    assert list(first.version_policy.specific.versions) == [1, 2]
    assert (first.model_warmup[0].count, first.model_warmup[0].batch_size) == (2, 4)
    load_as(stub, "again", models, json_format.MessageToJson(first))
    assert stub.ModelConfig(given).config == first
    asked = oip.ModelInferRequest(model_name="again")
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 3]).contents.fp32_contents[:] = [0, 0, 1]
    asked.outputs.add(name="z").parameters["classification"].int64_param = 1
    assert stub.ModelInfer(asked).raw_output_contents[0].endswith(b":2:owl")
    unload(stub, "again")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"input": [{"name": "x", "optional": True}]}, "input 'x' of the model has to be given"),
        (state(data_type="TYPE_INT32"), "input 'h' of the model is TYPE_FP32, not TYPE_INT32"),
        (state(dims=[2]), "input 'h' of the model has dims [1], not [2]"),
        (
            state(initial_state=[{"zero_data": True, "data_type": "TYPE_FP64", "dims": [1]}]),
            "input 'h' of the model is TYPE_FP32, not TYPE_FP64",
        ),
        (
            {"model_warmup": [{"inputs": {"x": {"data_type": "TYPE_FP16", "zero_data": True}}}]},
            "input 'x' of the model is TYPE_FP32, not TYPE_FP16",
        ),
    ],
)
def test_what_a_configuration_says_otherwise_than_the_model_is_refused(
    stub: Any, config: Any, why: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        load(stub, "other", {"1/model.onnx": KEPT}, **config)
    error: Any = caught.value
    assert error.code() is Refused.INVALID_ARGUMENT
    assert why in error.details()


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ({}, Refused.NOT_FOUND, "unknown network in the model repository 'loaded'"),
        ({"file:1/model.onnx": b"no"}, Refused.INVALID_ARGUMENT, ""),
        ({"file:1/model.onnx": "text"}, Refused.INVALID_ARGUMENT, "takes bytes"),
        ({"file:a/b/model.onnx": MODEL}, Refused.INVALID_ARGUMENT, "VERSION/model.onnx"),
        ({"file:1/../x": MODEL}, Refused.INVALID_ARGUMENT, "VERSION/model.onnx"),
        ({"file:1/w.bin": b"a"}, Refused.INVALID_ARGUMENT, "send file:1/model.onnx too"),
        (
            {"file:1/model.onnx": MODEL, "file:2/w.bin": b"a"},
            Refused.INVALID_ARGUMENT,
            "send file:2/model.onnx too",
        ),
        (
            {"file:1/model.onnx": MODEL, "file:1/w.bin": b"a"},
            Refused.INVALID_ARGUMENT,
            "no weights of the model lie in the file 'w.bin'",
        ),
        ({"file:../x": MODEL}, Refused.INVALID_ARGUMENT, "VERSION/model.onnx"),
        ({"file:x": b"a", "file:1/model.onnx": MODEL}, Refused.INVALID_ARGUMENT, "label_filename"),
        ({"other": 1}, Refused.INVALID_ARGUMENT, "is not a parameter here"),
        ({"config": 1}, Refused.INVALID_ARGUMENT, "takes text"),
        (
            {"config": '{"optimization": {"eager_batching": true}}'},
            Refused.UNIMPLEMENTED,
            "optimization",
        ),
        (
            {"config": '{"max_batch_size": 2}', "file:1/model.onnx": MODEL},
            Refused.INVALID_ARGUMENT,
            "input 'x' of the model has no first dimension of any size",
        ),
        (
            {
                "config": '{"version_policy": {"specific": {"versions": [7]}}}',
                "file:1/model.onnx": MODEL,
            },
            Refused.FAILED_PRECONDITION,
            "leaves out all versions",
        ),
    ],
)
def test_a_load_that_cannot_be_is_refused(
    stub: Any, given: dict[str, Any], code: Any, why: str
) -> None:
    message = oip.RepositoryModelLoadRequest(
        model_name="loaded", parameters=parameters(given, oip.ModelRepositoryParameter)
    )
    error = refused(stub.RepositoryModelLoad, message)
    assert error.code() is code
    assert why in error.details()
    assert not stub.ModelReady(oip.ModelReadyRequest(name="loaded")).ready


def test_a_failed_reload_keeps_the_model_that_serves(stub: Any) -> None:
    load(stub, "kept", {"1/model.onnx": MODEL})
    with pytest.raises(grpc.RpcError):
        load(stub, "kept", {"1/model.onnx": MODEL}, parameters={"DEVICE": {"string_value": "NONE"}})
    with pytest.raises(grpc.RpcError):
        load(stub, "kept", {"1/model.onnx": b"broken"})
    reply = stub.ModelInfer(request("kept"), timeout=CALL_SECONDS)
    np.testing.assert_array_equal(outputs_of(reply)["z"], SUM)
    unload(stub, "kept")


# -- settings --


def test_a_client_may_have_the_server_log_more(serving: Server, stub: Any, model: str) -> None:
    def settings(**values: Any) -> Any:
        kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
        kind = oip.LogSettingsRequest.SettingValue
        given = {name: kind(**{kinds[type(each)]: each}) for name, each in values.items()}
        return stub.LogSettings(oip.LogSettingsRequest(settings=given)).settings

    assert settings()["log_verbose_level"].uint32_param == 0
    assert settings(log_verbose_level=1)["log_verbose_level"].uint32_param == 1
    stub.ModelInfer(request(model, id="seen"), timeout=CALL_SECONDS)
    until(lambda: "request_id=seen" in serving.log())
    assert settings(log_verbose_level=0)["log_info"].bool_param
    for name, value in (("log_file", "/tmp/x"), ("log_info", 1), ("unknown", True)):
        with pytest.raises(grpc.RpcError) as caught:
            settings(**{name: value})
        assert name in caught.value.details()


def test_nothing_is_traced(stub: Any) -> None:
    kind = oip.TraceSettingRequest.SettingValue
    settings = stub.TraceSetting(oip.TraceSettingRequest()).settings
    assert list(settings["trace_level"].value) == ["OFF"]
    on = oip.TraceSettingRequest(settings={"trace_level": kind(value=["TIMESTAMPS"])})
    assert refused(stub.TraceSetting, on).code() is Refused.UNIMPLEMENTED


# -- the end --


def test_a_server_that_stops_finishes_what_is_in_flight_and_ends_open_streams() -> None:
    with Server(*BASIC) as server:
        server.load(CASE, "CPU", "m")
        stub: Any = rpc.GRPCInferenceServiceStub(server.channel)  # type: ignore[no-untyped-call]
        stream = Stream(stub)
        stream.send(request("m", id="a"))
        assert next(stream.call).infer_response.id == "a"
        server.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            next(stream.call)
        assert caught.value.code() is Refused.UNAVAILABLE
        assert server.process.wait(CALL_SECONDS) == 0
        assert "Traceback" not in server.log(), server.log()
