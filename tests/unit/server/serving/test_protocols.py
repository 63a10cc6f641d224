"""What a request may say is the same in headrace's own protocol, in the Open Inference Protocol and
in REST."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.errors import InvalidArgument, NotFound
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest, Presentation
from headrace.server.access.networks import Networks
from headrace.server.http.rest.messages import decode as decode_body
from headrace.server.services.inference import INFER, Inference
from headrace.server.services.open_inference.messages import MODEL_INFER, part_spans
from headrace.server.services.open_inference.service import OpenInferenceService
from headrace.server.serving.call import MAX_TENSORS
from headrace.server.serving.completion_sink import CompletionSink
from headrace.server.serving.layouts import CallLayouts
from headrace.server.serving.serving import Serving
from headrace.server.shared_memory.regions import Regions
from headrace.testing.case import parse
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import CodecError
from headrace.wire.request import MAX_ID_LENGTH
from tests.support.moody_device import moody
from tests.support.patience import PATIENCE_SECONDS

TWICE = parse("twice (float[n] x) => (float[n] y) { y = Add(x, x) }")
ROWS = 4


class Caller:
    """Has no deadline."""

    def time_remaining(self) -> None:
        return None


CALLER: Any = Caller()


async def native(serving: Serving, names: list[str], rows: int, **said: Any) -> None:
    request = pb.InferRequest(network=said["network"], id=said["id"], outputs=said["outputs"])
    for name in names:
        tensor = request.inputs.add(name=name).tensor
        tensor.dtype = pb.FLOAT
        tensor.shape.append(rows)
        tensor.data = bytes(4 * rows)
    await Inference(serving).infer(request.SerializeToString(), CALLER)


async def open_inference(serving: Serving, names: list[str], rows: int, **said: Any) -> None:
    request = oip.ModelInferRequest(model_name=said["network"], id=said["id"])
    for name in names:
        request.inputs.add(name=name, datatype="FP32", shape=[rows])
        request.raw_input_contents.append(bytes(4 * rows))
    for name in said["outputs"]:
        request.outputs.add(name=name)
    nothing: Any = None
    layouts = CallLayouts(part_spans)
    service = OpenInferenceService(nothing, serving, nothing, nothing, layouts)
    await service.model_infer(request.SerializeToString(), CALLER)


async def rest(serving: Serving, names: list[str], rows: int, **said: Any) -> None:
    body = {
        "id": said["id"],
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [rows], "data": [0.0] * rows}
            for name in names
        ],
        "outputs": [{"name": name} for name in said["outputs"]],
    }
    call = decode_body(said["network"], "", json.dumps(body).encode(), memoryview(b""))
    await serving.run(call, CALLER)


Ask = Callable[..., Awaitable[None]]
PROTOCOLS: Mapping[str, Ask] = {"native": native, "open inference": open_inference, "REST": rest}


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    core = Core([moody("MOODY")], blob_key=b"k" * 32)
    request = LoadRequest(
        "m", DeviceName.parse("MOODY"), presentation=Presentation(max_batch_size=ROWS)
    )
    data = TWICE.SerializeToString()
    core.load_network(request, lambda: Network.from_bytes(data)).result(PATIENCE_SECONDS)
    yield core
    core.stop()


@pytest.fixture(params=PROTOCOLS)
def ask(request: pytest.FixtureRequest, core: Core) -> Callable[..., None]:
    """Asks by each of the protocols."""

    def ask(
        *names: str, rows: int = 1, network: str = "m", identifier: str = "", outputs: Any = ()
    ) -> None:
        async def run() -> None:
            regions = Regions(allowed=False, max_bytes=0)
            sink = CompletionSink(asyncio.get_running_loop())
            serving = Serving(Networks(core.networks), sink, regions)
            said = {"network": network, "id": identifier, "outputs": outputs}
            try:
                await PROTOCOLS[request.param](serving, list(names), rows, **said)
            finally:
                regions.close()

        asyncio.run(run())

    return ask


def test_as_many_rows_as_the_network_takes_are_served(ask: Callable[..., None]) -> None:
    ask("x", rows=ROWS, identifier="i" * MAX_ID_LENGTH, outputs=["y"])


def test_more_rows_are_refused(ask: Callable[..., None]) -> None:
    with pytest.raises(InvalidArgument, match="has 5 rows; the model's max_batch_size is 4") as no:
        ask("x", rows=ROWS + 1)
    assert no.value.field == "inputs['x'].shape"


def test_a_longer_id_is_refused(ask: Callable[..., None]) -> None:
    with pytest.raises(CodecError, match="has at most 128 characters") as no:
        ask("x", identifier="i" * (MAX_ID_LENGTH + 1))
    assert no.value.field == "id"


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_more_tensors_are_refused(ask: Callable[..., None], field: str) -> None:
    names = [f"x{number}" for number in range(MAX_TENSORS + 1)]
    with pytest.raises(CodecError, match=r"has 4097 tensors; at most 4096|more than 4096 parts"):
        ask(*(names if field == "inputs" else "x"), outputs=names if field == "outputs" else ())


def test_an_input_given_twice_is_refused(ask: Callable[..., None]) -> None:
    with pytest.raises(CodecError, match="is given twice") as no:
        ask("x", "x")
    assert no.value.field == "inputs['x']"


def test_an_output_named_twice_is_refused(ask: Callable[..., None]) -> None:
    with pytest.raises(InvalidArgument, match="an output is named twice"):
        ask("x", outputs=["y", "y"])


def test_a_network_that_is_not_there_is_not_found(ask: Callable[..., None]) -> None:
    with pytest.raises(NotFound, match="unknown network 'n'"):
        ask("x", network="n")


def test_refused_requests_keep_no_network(ask: Callable[..., None], core: Core) -> None:
    with pytest.raises(InvalidArgument):
        ask("x", rows=ROWS + 1)
    (entry,) = core.networks.entries()
    assert entry.references == 0


class Other:
    """Another replica, which has the network "there". Its replies are what it was asked, twice."""

    def find(self, names: Any, _context: Any, sequence: str = "") -> str:
        self.sequence = sequence
        return "there" if "there" in names else ""

    async def unary(
        self, name: str, path: str, data: bytes, _context: Any, sequence: str = ""
    ) -> bytes:
        assert (name, sequence) == ("there", self.sequence)
        self.path = path
        return data * 2


@pytest.mark.parametrize("protocol", ["native", "open inference"])
def test_a_request_to_a_network_of_another_replica_is_passed_on_as_it_came(
    core: Core, protocol: str
) -> None:
    async def run() -> tuple[bytes, bytes]:
        regions: Any = None
        elsewhere: Any = Other()
        paths = {"native": INFER, "open inference": MODEL_INFER}
        sink = CompletionSink(asyncio.get_running_loop())
        serving = Serving(Networks(core.networks), sink, regions, elsewhere)
        nothing: Any = None
        if protocol == "native":
            session = pb.Session(id="s")
            data = pb.InferRequest(network="there", session=session).SerializeToString()
            reply: Any = await Inference(serving).infer(data, CALLER)
        else:
            sequence = {"sequence_id": oip.InferParameter(string_param="s")}
            data = oip.ModelInferRequest(
                model_name="there", parameters=sequence
            ).SerializeToString()
            layouts = CallLayouts(part_spans)
            service = OpenInferenceService(nothing, serving, nothing, nothing, layouts)
            reply = await service.model_infer(data, CALLER)
        assert (elsewhere.path, elsewhere.sequence) == (paths[protocol], "s")
        return data, reply

    data, reply = asyncio.run(run())
    assert reply == data * 2
