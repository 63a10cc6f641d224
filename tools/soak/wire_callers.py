"""Load without our client: a stream of our protocol, the Open Inference Protocol, and REST."""

from __future__ import annotations

import http.client
import json
import queue
import random
import ssl
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import grpc
import numpy as np

from headrace.oip import open_inference_pb2_grpc as oip_grpc
from headrace.server.services.open_inference.datatypes import datatype_of
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from headrace.wire.codec import decode_values
from tests.integration.harness import infer_request, outcome_of
from tests.support.open_inference import infer_request as open_request
from tests.support.open_inference import outputs_of
from tools.soak.caller import SECONDS, Caller
from tools.soak.ledger import End

BATCH = 16
_ENDS = {"CANCELLED": End.CANCELLED, "DEADLINE_EXCEEDED": End.EXPIRED}


def stream(caller: Caller) -> Generator[float]:
    """One stream that stays open: requests, cancels by id, and requests with little time. The
    server says what became of each."""
    dice, number = random.Random(4), 0
    while True:
        outgoing: queue.SimpleQueue[pb.InferStreamRequest | None] = queue.SimpleQueue()
        with closing(caller.place.channel()) as channel:
            stub: Any = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
            sent = iter(outgoing.get, None)
            call = stub.InferStream(sent, metadata=caller.place.metadata)
            replies = (result for reply in call for result in reply.results)
            try:
                while True:
                    number += BATCH
                    yield from _exchange(caller, outgoing, replies, number, dice)
            except grpc.RpcError as error:
                caller.note(error.code().name, f"the stream: {error.details()}")
            finally:
                outgoing.put(None)
                call.cancel()
        yield 1.0


def _exchange(
    caller: Caller, outgoing: Any, replies: Iterator[Any], number: int, dice: random.Random
) -> Iterator[float]:
    """Sends a batch, and reads all of its results."""
    begin = time.monotonic()
    open_ones: dict[str, Any] = {}
    requests = []
    for at in range(BATCH):
        inputs, expected = caller.sample()
        open_ones[f"r{number + at}"] = expected
        fields = {"timeout_seconds": dice.choice((1e-6, 1e-3))} if dice.random() < 0.1 else {}
        requests.append(infer_request(caller.target.name, inputs, id=f"r{number + at}", **fields))
    caller.count(End.SENT, len(requests))
    outgoing.put(pb.InferStreamRequest(requests=requests))
    cancel = [name for name in open_ones if dice.random() < 0.1]
    if cancel:
        outgoing.put(pb.InferStreamRequest(cancel=cancel))
    try:
        while open_ones:
            result = next(replies)
            expected = open_ones.pop(result.id)
            outcome = outcome_of(result)
            if outcome == "OK":
                reply = result.reply
                caller.judge(decode_values(reply.outputs, reply.attachments), expected)
            elif outcome in _ENDS:
                caller.count(_ENDS[outcome])
            else:
                caller.failed(outcome, result.error.message)
    except grpc.RpcError:
        caller.count(End.GIVEN_UP, len(open_ones))
        raise
    caller.took(begin)
    yield 0.1


def failing(caller: Caller) -> Generator[float]:
    """Requests of which every second one fails in its run, and ends nothing else."""
    x = np.arange(5, dtype=np.float32)
    with closing(caller.place.channel()) as channel:
        stub: Any = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
        while True:
            for at in (3, 7):
                inputs = {"x": x, "at": np.array([at], np.int64)}
                request = infer_request(caller.target.name, inputs)
                caller.count(End.SENT)
                try:
                    reply = stub.Infer(request, metadata=caller.place.metadata, timeout=SECONDS)
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.INVALID_ARGUMENT and at == 7:
                        caller.count(End.FAILED)
                    else:
                        caller.failed(error.code().name, error.details() or "")
                else:
                    found = decode_values(reply.outputs, reply.attachments)
                    caller.judge(found, {"y": x[[at]]})
            yield 0.2


def open_inference(caller: Caller) -> Generator[float]:
    """ModelInfer and ModelStreamInfer."""
    with closing(caller.place.channel()) as channel:
        stub: Any = oip_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        options = {"metadata": caller.place.metadata, "timeout": SECONDS}
        while True:
            inputs, expected = caller.sample()
            request = open_request(caller.target.name, inputs)
            with caller.sent():
                caller.judge(outputs_of(stub.ModelInfer(request, **options)), expected)
            yield 0.05
            samples = [caller.sample() for _ in range(4)]
            messages = [open_request(caller.target.name, each) for each, _ in samples]
            for number, message in enumerate(messages):
                message.id = str(number)
            left = len(messages)
            caller.count(End.SENT, left)
            try:
                for answer in stub.ModelStreamInfer(iter(messages), **options):
                    left -= 1
                    if answer.error_message:
                        caller.failed("STREAMED", answer.error_message)
                    else:
                        response = answer.infer_response
                        caller.judge(outputs_of(response), samples[int(response.id)][1])
            except grpc.RpcError as error:
                for _ in range(left):
                    caller.failed(error.code().name, error.details() or "")
            yield 0.1


def rest(caller: Caller) -> Generator[float]:
    """JSON and binary requests over HTTPS, on connections that stay and on new ones."""
    context = ssl.create_default_context(cafile=caller.place.ca)
    path = f"/v2/models/{caller.target.name}/infer"
    turn = 0
    while True:
        connection = http.client.HTTPSConnection(
            caller.place.http, context=context, timeout=SECONDS
        )
        try:
            for _ in range(20):
                turn += 1
                inputs, expected = caller.sample()
                body, headers = _json(inputs) if turn % 2 else _binary(inputs)
                headers["authorization"] = f"Bearer {caller.place.token}"
                with caller.sent():
                    connection.request("POST", path, body, headers)
                    reply = connection.getresponse()
                    data = reply.read()
                    if reply.status == 200:
                        caller.judge(_values(data, reply.headers), expected)
                    else:
                        caller.failed(str(reply.status), data.decode(errors="replace"))
                yield 0.05
        finally:
            connection.close()


def _json(inputs: Any) -> tuple[bytes, dict[str, str]]:
    sent = [
        {"name": n, "shape": v.shape, "datatype": datatype_of(v.dtype, n), "data": v.tolist()}
        for n, v in inputs.items()
    ]
    return json.dumps({"inputs": sent}).encode(), {}


def _binary(inputs: Any) -> tuple[bytes, dict[str, str]]:
    sent = [
        {
            "name": name,
            "shape": value.shape,
            "datatype": datatype_of(value.dtype, name),
            "parameters": {"binary_data_size": value.nbytes},
        }
        for name, value in inputs.items()
    ]
    text = json.dumps({"inputs": sent}).encode()
    data = b"".join(value.tobytes() for value in inputs.values())
    return text + data, {"Inference-Header-Content-Length": str(len(text))}


def _values(data: bytes, headers: Any) -> dict[str, Any]:
    assert "Inference-Header-Content-Length" not in headers  # binary output was not asked for
    types = {"FP32": np.float32, "INT64": np.int64}
    return {
        each["name"]: np.array(each["data"], types[each["datatype"]]).reshape(each["shape"])
        for each in json.loads(data)["outputs"]
    }
