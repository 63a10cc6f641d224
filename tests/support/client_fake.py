"""A server that answers as the protocol says, without devices; and both clients behind one face.

It reads and writes plain protobuf, so that the client is held against protobuf, not against itself.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from headrace.client import Client, aio
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as pb_grpc
from headrace.wire import errors as wire_errors
from headrace.wire.errors import ErrorDetails
from tests.support.patience import PATIENCE_SECONDS
from tests.support.status_document import StatusDocument

REFUSED = -1.0
"""An x of this is refused."""
ENDLESS = -2.0
"""An x of this runs until it is cancelled."""

ECHO = pb.NetworkInfo(
    name="echo",
    device="CPU",
    generation=3,
    state=pb.NetworkState.READY,
    inputs=[
        pb.PortInfo(
            name="x",
            dtype=pb.DataType.FLOAT,
            has_rank=True,
            shape=[pb.Dimension(size=-1, symbol="batch"), pb.Dimension(size=-1)],
        )
    ],
    outputs=[pb.PortInfo(name="y", dtype=pb.DataType.FLOAT), pb.PortInfo(name="z")],
    config={"NUM_STREAMS": "2"},
    load_seconds=0.5,
    notes=["fp16 to fp32"],
    execution_devices=["CPU"],
    origin="client",
)

STATEFUL = pb.NetworkInfo()
"""Keeps a state, and is ``echo`` otherwise."""
STATEFUL.CopyFrom(ECHO)
STATEFUL.name = "stateful"
STATEFUL.states["h"] = "hn"

GRAPH = pb.Graph(
    layers=[
        pb.ExecutableLayer(name="Relu_0", op_type="Relu", inputs=["x"], outputs=["h"]),
        pb.ExecutableLayer(name="F_1", op_type="Foo", domain="own", inputs=["h"], outputs=["y"]),
    ],
    inputs=ECHO.inputs,
    outputs=ECHO.outputs[:1],
    tensors=[
        pb.PortInfo(name="h", dtype=pb.DataType.FLOAT, has_rank=True, shape=[pb.Dimension(size=4)]),
    ],
)
"""Of the network that is asked about."""


class Fake(pb_grpc.InferenceEngineServicer):
    """Echoes x as y. What it was asked stands in `calls`; `failures` come before any answer."""

    def __init__(self) -> None:
        self.target = ""
        self.calls: list[tuple[str, Any]] = []
        self.failures: deque[ErrorDetails] = deque()
        self.refusals: deque[ErrorDetails] = deque()  # of single requests on streams
        self.tokens: list[str] = []
        self.uploaded = b""
        self.status = StatusDocument()
        self.graph: pb.Graph | None = GRAPH
        self.limits: pb.StreamLimits | None = None  # None: it knows no limits, as older servers
        self.timeouts: list[float | None] = []
        self.ends_streams = True
        self.cancelled = threading.Event()
        self.started = threading.Event()
        self.replicas: tuple[str, ...] = ()  # those of a loaded and of a failed network
        self.begins = False  # a reply begins before it fails
        self.held = False  # every Infer waits until one is cancelled

    def requests(self, method: str) -> list[Any]:
        return [request for called, request in self.calls if called == method]

    def _note(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        self.calls.append((method, request))
        self.tokens += [
            value for key, value in context.invocation_metadata() if key == "authorization"
        ]
        self.timeouts.append(context.time_remaining())
        if self.failures and self.begins:
            context.send_initial_metadata(())
        if self.failures:
            fail(context, self.failures.popleft())

    def UploadModel(self, request_iterator: Any, context: Any) -> pb.UploadModelReply:
        chunks = [request.chunk for request in request_iterator]
        self._note("UploadModel", [len(chunk) for chunk in chunks], context)
        self.uploaded = b"".join(chunks)
        return pb.UploadModelReply(digest="sha256:0", size_bytes=len(self.uploaded))

    def LoadNetwork(self, request: pb.LoadNetworkRequest, context: Any) -> pb.NetworkInfo:
        self._note("LoadNetwork", request, context)
        context.set_trailing_metadata([("x-request-id", "r-load")])
        info = loaded(request.name, request.device)
        info.replicas.extend(self.replicas)
        return info

    def UnloadNetwork(self, request: Any, context: Any) -> pb.UnloadNetworkReply:
        self._note("UnloadNetwork", request, context)
        return pb.UnloadNetworkReply()

    def ListNetworks(self, request: Any, context: Any) -> pb.ListNetworksReply:
        self._note("ListNetworks", request, context)
        failed = pb.NetworkInfo(
            name="bad",
            state=pb.NetworkState.NETWORK_FAILED,
            reason="no memory",
            replicas=self.replicas,
        )
        return pb.ListNetworksReply(networks=[ECHO, failed])

    def GetNetwork(self, request: Any, context: Any) -> pb.GetNetworkReply:
        self._note("GetNetwork", request, context)
        if request.name == STATEFUL.name:
            return pb.GetNetworkReply(info=STATEFUL)
        if request.name != "echo":
            message = f"unknown network {request.name!r}; did you mean 'echo'?"
            fail(context, ErrorDetails(grpc.StatusCode.NOT_FOUND, message, field="name"))
        layer = pb.ExecutableLayer(name="Relu_0", op_type="Relu", device="CPU")
        return pb.GetNetworkReply(info=ECHO, layers=[layer], performance_counts=[profile()])

    def QueryNetwork(self, request: Any, context: Any) -> pb.QueryNetworkReply:
        self._note("QueryNetwork", request, context)
        return pb.QueryNetworkReply(
            supported_layers={"Relu_0": "CPU"},
            unsupported=[pb.UnsupportedLayer(layer="F_1", op_type="Foo", reason="no kernel")],
            subgraphs=[pb.Subgraph(device="CPU", layers=["Relu_0"])],
            graph=self.graph if request.graph else None,
            notes=["moved from X to CPU (why): Relu_0"],
        )

    def Infer(self, request: pb.InferRequest, context: Any) -> pb.InferReply:
        self._note("Infer", request, context)
        if not request.inputs:
            return pb.InferReply(id=request.id)
        if self.held or first(request) == ENDLESS:
            ended = self.cancelled if self.held else threading.Event()
            for each in (self.cancelled, ended):
                if not context.add_callback(each.set):  # the call is over already
                    each.set()
            self.started.set()
            ended.wait(PATIENCE_SECONDS)
        reply, error = answer(request)
        if error is not None:
            fail(context, error)
        return reply

    def InferStream(self, request_iterator: Any, context: Any) -> Iterator[pb.InferStreamReply]:
        self.calls.append(("InferStream", None))
        told = 0
        for number, message in enumerate(request_iterator, 1):
            self.calls.append(("message", message))
            limits = self.limits if message.ask_limits else None
            if limits is not None or told:
                told = number
                yield pb.InferStreamReply(limits=limits, messages_read=told)
            if self.failures and message.requests:
                fail(context, self.failures.popleft())
            results = []
            for identifier in message.cancel:
                error = ErrorDetails(grpc.StatusCode.CANCELLED, "cancelled")
                results.append(
                    pb.InferStreamResult(id=identifier, error=wire_errors.to_status(error))
                )
            for request in reversed(message.requests):
                if first(request) == ENDLESS:
                    continue
                reply, failed = answer(request)
                failed = self.refusals.popleft() if self.refusals else failed
                results.append(
                    pb.InferStreamResult(id=request.id, reply=reply)
                    if failed is None
                    else pb.InferStreamResult(id=request.id, error=wire_errors.to_status(failed))
                )
            if results:
                yield pb.InferStreamReply(results=results)
        if not self.ends_streams:
            ended = threading.Event()
            if context.add_callback(ended.set):  # else it is over already
                ended.wait(PATIENCE_SECONDS)

    def GetMetric(self, request: Any, context: Any) -> pb.GetMetricReply:
        self._note("GetMetric", request, context)
        values = {
            "FULL_DEVICE_NAME": pb.Parameter(string_value="Fake CPU"),
            "SUPPORTED_METRICS": pb.Parameter(
                list_value=pb.StringList(values=["FULL_DEVICE_NAME", "RANGE_FOR_STREAMS"])
            ),
            "RANGE_FOR_STREAMS": pb.Parameter(range_value=pb.Range(minimum=1, maximum=8, step=1)),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": pb.Parameter(int_value=4),
            "SUPPORTED_CONFIG_KEYS": pb.Parameter(
                list_value=pb.StringList(values=["NUM_STREAMS", "PERF_COUNT"])
            ),
        }
        if request.name not in values:
            message = f"unknown metric {request.name!r}"
            fail(context, ErrorDetails(grpc.StatusCode.NOT_FOUND, message, field="name"))
        return pb.GetMetricReply(value=values[request.name])

    def GetConfig(self, request: Any, context: Any) -> pb.GetConfigReply:
        self._note("GetConfig", request, context)
        return pb.GetConfigReply(value=pb.Parameter(bool_value=True))

    def SetConfig(self, request: Any, context: Any) -> pb.SetConfigReply:
        self._note("SetConfig", request, context)
        return pb.SetConfigReply()

    def ImportNetwork(self, request_iterator: Any, context: Any) -> pb.NetworkInfo:
        parts = list(request_iterator)
        self._note("ImportNetwork", parts, context)
        options = parts[0].options
        self.uploaded = b"".join(part.chunk for part in parts[1:])
        return loaded(options.name, options.device)

    def ExportNetwork(self, request: Any, context: Any) -> Iterator[pb.ExportNetworkReply]:
        self._note("ExportNetwork", request, context)
        context.set_trailing_metadata([("x-request-id", "r-export")])
        yield pb.ExportNetworkReply(chunk=b"HEAD")
        yield pb.ExportNetworkReply(chunk=b"RACE")

    def AddExtension(self, request: Any, context: Any) -> pb.AddExtensionReply:
        self._note("AddExtension", request, context)
        return pb.AddExtensionReply(operators=["custom::Twice"])

    def SetTraffic(self, request: Any, context: Any) -> pb.SetTrafficReply:
        self._note("SetTraffic", request, context)
        return pb.SetTrafficReply()

    def SetShadow(self, request: Any, context: Any) -> pb.SetShadowReply:
        self._note("SetShadow", request, context)
        return pb.SetShadowReply()

    def ListRepository(self, request: Any, context: Any) -> pb.ListRepositoryReply:
        self._note("ListRepository", request, context)
        state = pb.NetworkState
        return pb.ListRepositoryReply(
            versions=[
                pb.RepositoryVersion(
                    name="echo",
                    version="1",
                    state=state.READY,
                    share=90,
                    memory_bytes=3 << 20,
                    idle_seconds=4.0,
                ),
                pb.RepositoryVersion(
                    name="echo", version="2", state=state.READY, share=10, reason="bad model"
                ),
                pb.RepositoryVersion(name="other", version="7", state=state.NETWORK_FAILED),
                pb.RepositoryVersion(name="third", reason="leads out"),
            ]
        )

    def GetStatus(self, request: Any, context: Any) -> pb.GetStatusReply:
        self._note("GetStatus", request, context)
        return pb.GetStatusReply(document=json.dumps(self.status.document()).encode())

    def ListDevices(self, request: Any, context: Any) -> pb.ListDevicesReply:
        self._note("ListDevices", request, context)
        return pb.ListDevicesReply(
            devices=[
                pb.DeviceInfo(
                    name="CPU", state=pb.DeviceState.UP, full_name="Fake CPU", device_ids=["0"]
                ),
                pb.DeviceInfo(name="CUDA", state=pb.DeviceState.DOWN, reason="no driver"),
            ]
        )


def loaded(name: str, device: str) -> pb.NetworkInfo:
    network = pb.NetworkInfo()
    network.CopyFrom(ECHO)
    network.name = name or "chosen"
    network.device = device or "CPU"
    return network


def profile() -> pb.LayerProfile:
    return pb.LayerProfile(
        layer="Relu_0", op_type="Relu", device="CPU", execution_type="relu_f32", seconds=0.001
    )


def first(request: pb.InferRequest) -> float:
    tensor = request.inputs[0].tensor
    data = request.attachments[tensor.attachment - 1] if tensor.attachment else tensor.data
    return float(np.frombuffer(data, np.float32)[0])


def answer(request: pb.InferRequest) -> tuple[pb.InferReply, ErrorDetails | None]:
    reply = pb.InferReply(id=request.id or "made-up", generation=3, attachments=request.attachments)
    if first(request) == REFUSED:
        return reply, ErrorDetails(
            grpc.StatusCode.INVALID_ARGUMENT,
            "x is negative",
            reason="NEGATIVE",
            field="inputs['x']",
            metadata={"x": "-1"},
        )
    output = reply.outputs.add()
    output.CopyFrom(request.inputs[0])
    output.name = "y"
    reply.timings.queue_seconds = 0.25
    reply.timings.execution_seconds = 0.5
    reply.timings.inference_seconds = 0.125
    if request.performance_counts:
        reply.performance_counts.append(profile())
    return reply, None


def fail(context: Any, error: ErrorDetails) -> None:
    context.set_trailing_metadata(wire_errors.to_trailing_metadata(error))
    context.abort(error.code, error.message)


@contextmanager
def running(
    port: int = 0,
    interceptors: Sequence[Any] = (),
    host: str = "127.0.0.1",
    credentials: grpc.ServerCredentials | None = None,
) -> Iterator[Fake]:
    """A fake server, until the context ends."""
    fake = Fake()
    threads = futures.ThreadPoolExecutor(8)
    server = grpc.server(threads, interceptors=interceptors, options=[("grpc.so_reuseport", 0)])
    add_servicer: Any = pb_grpc.add_InferenceEngineServicer_to_server
    add_servicer(fake, server)
    place = f"{host}:{port}"
    port = (
        server.add_insecure_port(place)
        if credentials is None
        else server.add_secure_port(place, credentials)
    )
    fake.target = f"{host}:{port}"
    server.start()
    try:
        yield fake
    finally:
        fake.cancelled.set()
        server.stop(None).wait()


class Awaited:
    """An object of the asyncio client whose coroutines are run to their end at once."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self.inner = inner
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            async def on_the_loop() -> Any:
                result = attribute(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

            return self._wrap(self.runner.run(on_the_loop()))

        return call

    def __iter__(self) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(self.inner, None)

        while (result := self.runner.run(following())) is not None:
            yield result

    def close(self) -> None:
        self.__getattr__("aclose" if hasattr(self.inner, "aclose") else "close")()

    def _wrap(self, result: Any) -> Any:
        if isinstance(result, aio.Network | aio.InferRequest | aio.InferMany | aio.Session):
            return Awaited(result, self.runner)
        if isinstance(result, list):
            return [self._wrap(element) for element in result]
        return result


@contextmanager
def connected(kind: str, target: Any, **options: Any) -> Iterator[Any]:
    """A client of a kind, ``sync`` or ``aio``; both are used in the same way."""
    if kind == "sync":
        with Client(target, **options) as blocking:
            yield blocking
        return

    async def make() -> aio.Client:
        return aio.Client(target, **options)

    with asyncio.Runner() as runner:
        client = Awaited(runner.run(make()), runner)
        try:
            yield client
        finally:
            client.close()


KINDS: Sequence[str] = ("sync", "aio")


def eventually(condition: Any, seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether a condition of another thread's comes true in time."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            return False
        pause.wait(0.005)
    return True
