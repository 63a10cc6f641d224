"""Load that changes the server: networks that come and go; and requests that must be refused."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

import grpc
import numpy as np

from headrace.client import Client, errors
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.integration.harness import infer_request
from tools.soak.caller import SECONDS, Caller
from tools.soak.ledger import End
from tools.soak.networks import is_right


def churn(caller: Caller) -> Generator[float]:
    """Loads the network under another name, uses, replaces, exports, imports and unloads it. The
    name's counters go with it, so its requests are not counted."""
    place, model = caller.place, caller.target.case.model
    with place.client() as client:
        for number in itertools.count():
            name = f"come-and-go-{caller.target.name}-{number % 3}"
            caller.count(End.SENT)
            for again in range(2):
                inputs, expected = caller.sample()
                try:
                    network = client.load_network(
                        model, device=caller.target.device, name=name, replace=True
                    )
                    if not is_right(network.infer(inputs), expected):
                        caller.wrong("of a network just loaded")
                    if again:
                        copy = client.import_network(network.export(), name=f"{name}-copy")
                        if not is_right(copy.infer(inputs), expected):
                            caller.wrong("of an imported network")
                        copy.unload()
                        network.unload()
                except errors.Error as error:
                    caller.note(error.code.name, str(error))
                time.sleep(0.3)  # none is loaded while the load pauses
            for left in (name, f"{name}-copy"):  # what an error has left
                _unloaded(caller, client, left)
            caller.count(End.OK)
            yield 1.0


def _unloaded(caller: Caller, client: Client, name: str) -> None:
    """Unloads a network if there is one, however often a device is down meanwhile."""
    while True:
        try:
            client.network(name).unload()
        except errors.NotFound:
            return
        except errors.Error as error:
            caller.note(error.code.name, str(error))
            time.sleep(0.5)


def canary(caller: Caller) -> Generator[float]:
    """Calls a network of the repository whose versions change; each answers with its own number."""
    with caller.place.client() as client:
        network = client.network(caller.target.name)
        x = np.zeros(2, np.float32)
        while True:
            with caller.sent():
                outputs = network.infer({"x": x})
                caller.count(End.OK)
                if str(int(outputs["y"][0])) != outputs.version:
                    caller.wrong(f"{outputs} of version {outputs.version}")
            yield 0.1


def bad(caller: Caller) -> Generator[float]:
    """Requests that the server must refuse, each with its own status."""
    place = caller.place
    good = {"x": np.ones((2, 2), np.float32)}
    request = infer_request(caller.target.name, good)
    short = infer_request(caller.target.name, good)
    short.inputs[0].tensor.data = b"\0"
    stranger = (("authorization", "Bearer hr_nobody"),)
    with closing(place.channel()) as channel:
        stub: Any = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
        plain = channel.unary_unary("/headrace.v1.InferenceEngine/Infer")
        load = pb.LoadNetworkRequest(
            name="bad", device="CPU", model=pb.ModelSource(data=b"\xff\xff")
        )
        cases: list[tuple[Any, Any, Any, str]] = [
            (stub.Infer, infer_request("no-such", good), place.metadata, "NOT_FOUND"),
            (stub.Infer, short, place.metadata, "INVALID_ARGUMENT"),
            (stub.Infer, request, stranger, "UNAUTHENTICATED"),
            (stub.Infer, request, (), "UNAUTHENTICATED"),
            (plain, b"\xff" * 64, place.metadata, "INVALID_ARGUMENT"),
            (stub.LoadNetwork, load, place.metadata, "INVALID_ARGUMENT"),
        ]
        for call, message, metadata, code in itertools.cycle(cases):
            caller.count(End.SENT)
            try:
                call(message, metadata=metadata, timeout=SECONDS)
                caller.failed("OK", f"a request that must be {code} was taken")
            except grpc.RpcError as error:
                if error.code().name == code:
                    caller.count(End.REFUSED)
                else:
                    caller.failed(error.code().name, f"instead of {code}: {error.details()}")
            yield 0.2
