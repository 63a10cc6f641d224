"""With --private-networks, a tenant sees nothing of another one: no method and no path tells.

A tenant calls every method and asks for every path under the names of another tenant, before that
tenant exists for the server and after it has loaded, uploaded and registered all that it can. The
answers have to be the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, message_factory, text_format
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.metrics.counters import Counters
from headrace.server.access.tokens import token_hash
from headrace.server.services.methods import Kind, all_methods
from headrace.server.transport.boundary import Boundary
from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import BASIC, CALL_SECONDS, Server, infer_request, until
from tests.support.open_inference import infer_request as model_request
from tests.support.stateful import SUM, SUM_STATES

HEADRACE, OPEN, HEALTH = (
    "headrace.v1.InferenceEngine",
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
)
REFLECTION = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")
MODEL = networks.add().model.SerializeToString()
SECRET_MODEL = SUM.SerializeToString()
DIGEST = f"sha256:{hashlib.sha256(SECRET_MODEL).hexdigest()}"
X = np.ones((1, 2), np.float32)
STATES = {"STATES": SUM_STATES}
VOLATILE = (
    "generation",
    "id",
    "count",
    "ns",
    "inference_count",
    "execution_count",
    "last_inference",
    "idle_seconds",
    "load_seconds",
    "queue_seconds",
    "execution_seconds",
    "inference_seconds",
)
"""Fields that differ from call to call."""


class Tenant(NamedTuple):
    """A client with a token."""

    server: Server
    token: str

    def raw(self, service: str, method: str, messages: Sequence[Any], most: int = 99) -> Any:
        """The replies to these messages, or the status and all that comes with it."""
        call = self.server.channel.stream_stream(f"/{service}/{method}")(
            iter([each.SerializeToString() for each in messages]),
            timeout=CALL_SECONDS,
            metadata=[("authorization", f"Bearer {self.token}"), ("x-request-id", "one")],
        )
        replies = []
        try:
            for reply in call:
                replies.append(reply)
                if len(replies) == most:
                    call.cancel()
                    break
        except grpc.RpcError:
            return replies, call.code(), call.details(), sorted(call.trailing_metadata())
        return replies

    def call(
        self, method: str, *messages: Any, service: str = "headrace.v1.InferenceEngine"
    ) -> Any:
        """The replies as text, without what differs from call to call, or the error."""
        return shown(service, method, self.raw(service, method, messages, 1))

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.server.http}{path}",
            data=data if method == "POST" else None,
            method=method,
            headers={"authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def load(self, name: str, model: bytes = MODEL, **fields: Any) -> Any:
        source = pb.ModelSource(data=model)
        fields = {"device": "CPU", **fields}
        return self.call("LoadNetwork", pb.LoadNetworkRequest(name=name, model=source, **fields))

    def names(self) -> list[str]:
        (data,) = self.raw(
            "headrace.v1.InferenceEngine", "ListNetworks", [pb.ListNetworksRequest()]
        )
        return sorted(each.name for each in pb.ListNetworksReply.FromString(data).networks)

    def unload(self, name: str) -> Any:
        return self.call("UnloadNetwork", pb.UnloadNetworkRequest(name=name))


def shown(service: str, method: str, answer: Any) -> Any:
    replies = answer[0] if isinstance(answer, tuple) else answer
    service = service.replace("reflection.v1.", "reflection.v1alpha.")  # they are alike
    found = descriptor_pool.Default().FindServiceByName(service)
    kind = message_factory.GetMessageClass(found.methods_by_name[method].output_type)
    texts = []
    for reply in replies:
        if method == "GetStatus":
            texts.append([told_in(json.loads(pb.GetStatusReply.FromString(reply).document))])
            continue
        lines = text_format.MessageToString(kind.FromString(reply)).splitlines()
        texts.append([each for each in lines if each.split(":")[0].strip() not in VOLATILE])
    return (texts, *answer[1:]) if isinstance(answer, tuple) else texts


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("private")
    shared = folder / "repository" / "shared" / "1"
    shared.mkdir(parents=True)
    (shared / "model.onnx").write_bytes(SUM.SerializeToString())
    (shared.parent / "network.toml").write_text('[states]\ntotal = "next"\n')
    tokens = folder / "tokens.toml"
    roles = {"a": "manage", "b": "manage", "ops": "manage", "watch": "read"}
    tokens.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{token_hash(name)}"\nroles = ["{role}"]\n'
            for name, role in roles.items()
        )
    )
    with Server(
        *BASIC,
        "--tokens",
        str(tokens),
        "--private-networks",
        "--operators",
        "token:ops",
        "--model-repository",
        str(folder / "repository"),
        "--state-dir",
        str(folder / "state"),
        "--allow-client-shared-memory",
        "--max-networks-per-client",
        "4",
    ) as running:
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture
def a(private: Server) -> Tenant:
    return Tenant(private, "a")


@pytest.fixture
def b(private: Server) -> Tenant:
    return Tenant(private, "b")


@pytest.fixture
def operator(private: Server) -> Tenant:
    return Tenant(private, "ops")


# -- every method --


def target(name: str) -> pb.Target:
    return pb.Target(network=name)


def messages(name: str) -> dict[tuple[str, str], list[Any]]:
    """What to send to each method, about a network, a region and a sequence of this name."""
    inputs = {"x": X, "total": X}
    infer = infer_request(name, inputs, id="0")
    source = pb.ModelSource(digest=DIGEST)
    ours: dict[str, list[Any]] = {
        "UploadModel": [pb.UploadModelRequest(chunk=MODEL)],
        "LoadNetwork": [pb.LoadNetworkRequest(name="mine", device="CPU", model=source)],
        "UnloadNetwork": [pb.UnloadNetworkRequest(name=name)],
        "ListNetworks": [pb.ListNetworksRequest()],
        "GetNetwork": [pb.GetNetworkRequest(name=name)],
        "QueryNetwork": [pb.QueryNetworkRequest(device="CPU", model=source)],
        "Infer": [infer],
        "InferStream": [pb.InferStreamRequest(requests=[infer_request(name, inputs, id="0")])],
        "GetMetric": [pb.GetMetricRequest(target=target(name), name="NETWORK_NAME")],
        "GetConfig": [pb.GetConfigRequest(target=target(name), name="PERF_COUNT")],
        "SetConfig": [pb.SetConfigRequest(target=target(name), config={"PERF_COUNT": "YES"})],
        "ImportNetwork": [
            pb.ImportNetworkRequest(options=pb.ImportOptions(name=name)),
            pb.ImportNetworkRequest(chunk=b"no blob"),
        ],
        "ExportNetwork": [pb.ExportNetworkRequest(name=name)],
        "AddExtension": [pb.AddExtensionRequest(device="CPU", functions=b"")],
        "ListDevices": [pb.ListDevicesRequest()],
        "GetStatus": [pb.GetStatusRequest()],
        "ListRepository": [pb.ListRepositoryRequest()],
        "SetTraffic": [pb.SetTrafficRequest(network=name, shares={"1": 100})],
        "SetShadow": [pb.SetShadowRequest(network=name, version="1", percent=5)],
        "RegisterSharedMemory": [
            pb.RegisterSharedMemoryRequest(name=name, key="/headrace-none", bytes=8)
        ],
        "UnregisterSharedMemory": [pb.UnregisterSharedMemoryRequest(name=name)],
        "ListSharedMemory": [pb.ListSharedMemoryRequest()],
    }
    by_name = {"name": name}
    theirs: dict[str, Any] = {
        "ServerLive": {},
        "ServerReady": {},
        "ServerMetadata": {},
        "ModelReady": by_name,
        "ModelMetadata": by_name,
        "ModelConfig": by_name,
        "ModelStatistics": by_name,
        "RepositoryIndex": {},
        "RepositoryModelLoad": {"model_name": name},
        "RepositoryModelUnload": {"model_name": name},
        "SystemSharedMemoryStatus": by_name,
        "SystemSharedMemoryRegister": {**by_name, "key": "/headrace-none", "byte_size": 8},
        "SystemSharedMemoryUnregister": by_name,
        "CudaSharedMemoryStatus": by_name,
        "CudaSharedMemoryRegister": by_name,
        "CudaSharedMemoryUnregister": by_name,
        "TraceSetting": {"model_name": name},
        "LogSettings": {"settings": {"log_info": oip.LogSettingsRequest.SettingValue()}},
    }
    probe = health_pb2.HealthCheckRequest(service=name)
    reflect = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
    return {
        **{(HEADRACE, method): sent for method, sent in ours.items()},
        **{(OPEN, m): [getattr(oip, f"{m}Request")(**fields)] for m, fields in theirs.items()},
        (OPEN, "ModelInfer"): [model_request(name, inputs, id="0")],
        (OPEN, "ModelStreamInfer"): [model_request(name, inputs, id="0")],
        (HEALTH, "Check"): [probe],
        (HEALTH, "Watch"): [probe],
        (HEALTH, "List"): [health_pb2.HealthListRequest()],
        **{(each, "ServerReflectionInfo"): [reflect] for each in REFLECTION},
    }


def more_messages(name: str) -> list[tuple[str, str, Any]]:
    """Further requests that could tell of a name: all of something, and versions."""
    regions = pb.SharedMemory(region=name, bytes=8)
    on_shared = infer_request("shared", {"x": X}, id="1", session=pb.Session(id="talk"))
    in_region = infer_request("shared", {"x": X}, id="1", output_regions={"doubled": regions})
    return [
        (OPEN, "ModelStatistics", oip.ModelStatisticsRequest()),
        (OPEN, "SystemSharedMemoryStatus", oip.SystemSharedMemoryStatusRequest()),
        (OPEN, "ModelReady", oip.ModelReadyRequest(name=name, version="7")),
        (OPEN, "ModelMetadata", oip.ModelMetadataRequest(name=name, version="7")),
        (HEADRACE, "GetNetwork", pb.GetNetworkRequest(name=name, version="7")),
        (HEADRACE, "UnloadNetwork", pb.UnloadNetworkRequest(name=name, version="7")),
        (HEADRACE, "Infer", infer_request(name, {"x": X}, id="1", session=pb.Session(id="talk"))),
        (HEADRACE, "Infer", on_shared),
        (HEADRACE, "Infer", in_region),
        (HEADRACE, "InferStream", pb.InferStreamRequest(requests=[on_shared])),
        (HEADRACE, "GetNetwork", pb.GetNetworkRequest(name=f"{name}x")),  # did you mean
        (
            HEADRACE,
            "LoadNetwork",
            pb.LoadNetworkRequest(name="mine", model=pb.ModelSource(repository=name)),
        ),
    ]


NAMES = ("secret", "secret@token:a", "only-a")
"""Names of networks that tenant A loads, some as an operator sees them."""


def answers(tenant: Tenant) -> dict[Any, Any]:
    """What a tenant gets from every method about the names."""
    found: dict[Any, Any] = {}
    for name in NAMES:
        for (service, method), sent in messages(name).items():
            found[service, method, name] = tenant.call(method, *sent, service=service)
        for number, (service, method, sent) in enumerate(more_messages(name)):
            found[service, method, name, number] = tenant.call(method, sent, service=service)
    return found


def paths(tenant: Tenant) -> list[tuple[str, str]]:
    """Every method and path of HTTP."""
    _, text = tenant.ask("GET", "/v2/openapi.json")
    described = [
        (method.upper(), path)
        for path, methods in json.loads(text)["paths"].items()
        for method in methods
    ]
    return [
        *described,
        *(("GET", path) for path in ("/metrics", "/healthz", "/readyz", "/v2/docs")),
        *(("GET", path) for path in ("/", "/status", "/status?match={name}")),
    ]


def body(path: str) -> Any:
    """What to send to a path with POST."""
    encoded = base64.b64encode(b"no model").decode()
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [1, 2], "data": [1.0, 1.0]}
        for name in ("x", "total")
    ]
    by_end: Mapping[str, Any] = {
        "/infer": {"inputs": tensors},
        "/load": {"parameters": {"file:1/model.onnx": encoded}},
        "/unload": {},
        "/index": {},
        "/register": {"key": "/headrace-none", "offset": 0, "byte_size": 8},
        "/unregister": {},
        "/logging": {"log_info": True},
        "/setting": {},
    }
    return next(value for end, value in by_end.items() if path.endswith(end))


def pages(tenant: Tenant) -> dict[Any, Any]:
    """What a tenant gets from every path about the names."""
    found: dict[Any, Any] = {}
    for method, path in paths(tenant):
        for name in NAMES:
            full = path.replace("{version}", "7")
            for placeholder in ("{model}", "{name}"):
                full = full.replace(placeholder, name.replace("%", "%25"))
            assert "{" not in full, "a path with a placeholder that this test does not know"
            status, text = tenant.ask(method, full, body(path) if method == "POST" else None)
            if path == "/metrics":
                lines = [each for each in text.splitlines() if 'network="' in each]
                text = "\n".join(sorted({each.partition("}")[0] for each in lines}))
            elif path.startswith("/status"):
                text = told_in(json.loads(text))
            elif path.endswith("/stats"):
                text = str([each["name"] for each in json.loads(text).get("model_stats", ())])
            found[method, path, name] = status, text
    return found


def told_in(status: Any) -> str:
    """What a status document says of networks, without what differs from time to time."""
    listed = status["networks"], (status["repository"] or {}).get("versions", ())
    names = [[(each["name"], each["version"], each["state"]) for each in rows] for rows in listed]
    counts = status["networks_total"], status["networks_left_out"], status["caller"]
    errors = {(each["caller"], each["network"]) for each in status["errors"]}
    devices = [(each["name"], each["state"], each["reason"]) for each in status["devices"]]
    return str((names, counts, devices, sorted(errors)))


def settled(tenant: Tenant) -> tuple[dict[Any, Any], dict[Any, Any]]:
    return answers(tenant), pages(tenant)


def use_all(tenant: Tenant, segment: SharedMemory) -> None:
    """Makes all that a tenant can make, under the names that another one asks for."""
    assert "READY" in str(tenant.load("secret", SECRET_MODEL, config=STATES))
    assert "READY" in str(tenant.load("only-a"))
    assert "READY" in str(tenant.load("shared"))  # hides the shared one from this tenant alone
    assert DIGEST in str(tenant.call("UploadModel", pb.UploadModelRequest(chunk=SECRET_MODEL)))
    for network in ("secret", "only-a"):
        region = pb.RegisterSharedMemoryRequest(name=network, key=f"/{segment.name}", bytes=8)
        assert tenant.call("RegisterSharedMemory", region) == [[]]
    begun = infer_request("secret", {"x": X}, session=pb.Session(id="talk", start=True))
    assert "outputs" in str(tenant.call("Infer", begun))
    assert "outputs" in str(tenant.call("Infer", infer_request("only-a", networks.add().inputs)))


def test_every_method_of_every_service_is_tried() -> None:
    """If this fails, add the new method to `messages`."""
    table = all_methods(MagicMock(), Boundary(Counters(), 1))
    assert {(row.service, row.name) for row in table} == messages("m").keys()
    assert {row.kind for row in table} == set(Kind)


def test_no_method_and_no_path_tells_a_tenant_of_another_one(a: Tenant, b: Tenant) -> None:
    assert "READY" in str(b.load("own"))
    settled(b)  # what B makes itself is there from the first time on
    before = settled(b)
    segment = SharedMemory(create=True, size=4096)
    try:
        use_all(a, segment)
        after = settled(b)
    finally:
        segment.unlink()
        segment.close()
        for name in ("secret", "only-a", "shared"):
            a.unload(name)
        a.call("UnregisterSharedMemory", pb.UnregisterSharedMemoryRequest())
        b.unload("own")
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        for question in one:
            assert other[question] == one[question], question
    told = str(after).replace("secret@token", "")
    assert "only-a@" not in told
    assert "token:a" not in told.replace("@token:a", "")


# -- names --


def test_two_tenants_load_compute_and_unload_under_one_name(a: Tenant, b: Tenant) -> None:
    assert "READY" in str(a.load("m"))
    assert "READY" in str(b.load("m", SUM.SerializeToString()))
    assert "outputs" in str(a.call("Infer", infer_request("m", networks.add().inputs)))
    assert "outputs" in str(b.call("Infer", infer_request("m", {"x": X, "total": X})))
    assert "ALREADY_EXISTS" in str(a.load("m"))
    assert 'name: "m"' in str(a.load("m", replace=True))
    assert a.unload("m") == [[]]
    assert "NOT_FOUND" in str(a.unload("m"))
    assert b.names() == ["m", "shared"]
    assert b.unload("m") == [[]]


def test_a_network_s_metric_has_the_name_that_its_owner_gave(a: Tenant) -> None:
    a.load("m")
    asked = pb.GetMetricRequest(target=target("m"), name="NETWORK_NAME")
    assert 'string_value: "m"' in str(a.call("GetMetric", asked)).replace("text", "string_value")
    status, text = a.ask("GET", "/metrics")
    assert status == 200
    assert 'network="m"' in text
    assert "token:a" not in text
    a.unload("m")


def test_a_status_document_has_the_errors_of_its_caller_alone(
    a: Tenant, b: Tenant, operator: Tenant, private: Server
) -> None:
    def errors(tenant: Tenant, **wanted: str) -> list[dict[str, Any]]:
        status, text = tenant.ask("GET", "/status")
        assert status == 200
        return [each for each in json.loads(text)["errors"] if wanted.items() <= each.items()]

    a.load("mine")
    wrong = infer_request("mine", {"x": np.ones((1, 2, 3, 4), np.float32)})
    assert "INVALID_ARGUMENT" in str(a.call("Infer", wrong))
    wanted = {"network": "mine", "code": "INVALID_ARGUMENT", "caller": "token:a"}
    until(lambda: errors(a, **wanted), "the error was to be noted")
    assert not errors(b, caller="token:a")
    assert not errors(Tenant(private, "watch"), caller="token:a")
    (first, *_) = errors(operator, caller="token:a")
    assert (first["network"], first["method"]) == ("mine@token:a", "Infer")
    a.unload("mine")


def test_operators_and_observers_tell_the_networks_of_one_name_apart(
    a: Tenant, b: Tenant, operator: Tenant, private: Server
) -> None:
    a.load("m")
    b.load("m")
    a.call("Infer", infer_request("m", networks.add().inputs))
    assert operator.names() == ["m@token:a", "m@token:b", "shared"]
    observer = Tenant(private, "watch")
    assert observer.names() == operator.names()
    _, text = observer.ask("GET", "/metrics")
    for name, count in (("m@token:a", 1), ("m@token:b", 0)):
        labels = f'{{device="CPU.0",network="{name}",version="1"}}'
        counted = f"headrace_network_accepted_total{labels} {count}.0"
        assert counted in [line for line in text.splitlines() if "network_accepted_total{" in line]
    status, _ = observer.ask("GET", "/v2/models/m@token:a")
    assert status == 200
    assert operator.unload("m@token:a") == [[]]
    assert "NOT_FOUND" in str(a.unload("m"))
    assert operator.unload("m@token:b") == [[]]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("UnloadNetwork", pb.UnloadNetworkRequest(name="shared")),
        ("SetTraffic", pb.SetTrafficRequest(network="shared", shares={"1": 100})),
        ("SetShadow", pb.SetShadowRequest(network="shared", version="1", percent=5)),
        ("SetConfig", pb.SetConfigRequest(target=target("shared"), config={"PERF_COUNT": "YES"})),
        ("SetConfig", pb.SetConfigRequest(target=pb.Target(device="CPU"), config={})),
        ("AddExtension", pb.AddExtensionRequest(device="CPU", functions=b"")),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_would_change_the_networks_of_others_is_for_operators(
    b: Tenant, method: str, request_: Any
) -> None:
    assert "PERMISSION_DENIED" in str(b.call(method, request_))


def test_logging_is_for_operators(b: Tenant, operator: Tenant) -> None:
    change = {"log_verbose_level": 0}
    assert b.ask("POST", "/v2/logging", change)[0] == 403
    assert operator.ask("POST", "/v2/logging", change)[0] == 200
    unload = oip.RepositoryModelUnloadRequest(model_name="shared")
    assert "PERMISSION_DENIED" in str(b.call("RepositoryModelUnload", unload, service=OPEN))
    assert b.ask("POST", "/v2/repository/models/shared/unload", {})[0] == 403


def test_sequences_of_one_id_on_a_shared_network_are_apart(a: Tenant, b: Tenant) -> None:
    def step(tenant: Tenant, **session: bool) -> Any:
        asked = infer_request("shared", {"x": X}, session=pb.Session(id="talk", **session))
        (data,) = tenant.raw(HEADRACE, "Infer", [asked])
        (value,) = pb.InferReply.FromString(data).outputs
        return np.frombuffer(value.tensor.data, np.float32).tolist()

    assert step(a, start=True) == [2, 2]
    assert step(a) == [4, 4]
    assert step(b, start=True) == [2, 2]
    assert step(a) == [6, 6]
    assert step(b, end=True) == [4, 4]
    assert step(a, end=True) == [8, 8]


def test_a_copy_of_a_repository_s_network_is_the_tenant_s(a: Tenant, b: Tenant) -> None:
    load = oip.RepositoryModelLoadRequest(model_name="shared")
    assert a.call("RepositoryModelLoad", load, service=OPEN) == [[]]
    assert "READY" in str(a.call("GetNetwork", pb.GetNetworkRequest(name="shared")))
    unload = oip.RepositoryModelUnloadRequest(model_name="shared")
    assert a.call("RepositoryModelUnload", unload, service=OPEN) == [[]]
    assert a.names() == b.names() == ["shared"]


def test_a_client_has_as_many_networks_as_one_client_may(a: Tenant, b: Tenant) -> None:
    loaded = [str(a.load(f"m{number}")) for number in range(5)]
    assert ["READY" in each for each in loaded] == [True] * 4 + [False]
    assert "RESOURCE_EXHAUSTED" in loaded[4]
    assert "--max-networks-per-client" in loaded[4]
    assert "READY" in str(b.load("m"))
    b.unload("m")
    for number in range(4):
        a.unload(f"m{number}")


def test_a_restart_keeps_the_owners(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{token_hash(name)}"\nroles = ["manage"]\n'
            for name in ("a", "b")
        )
    )
    kept = (*BASIC, "--tokens", str(tokens), "--state-dir", str(tmp_path / "state"))
    with Server(*kept, "--private-networks") as server:
        Tenant(server, "a").load("m")
        Tenant(server, "a").load("only-a")
        Tenant(server, "b").load("m", SUM.SerializeToString())
        server.stop()
    with Server(*kept, "--private-networks") as server:
        a, b = Tenant(server, "a"), Tenant(server, "b")
        until(lambda: a.names() == ["m", "only-a"])
        assert b.names() == ["m"]
        assert "outputs" in str(b.call("Infer", infer_request("m", {"x": X, "total": X})))
