"""A server as a process of its own, and calls of its wire contract without the client between."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Self

import grpc
from google.rpc import status_pb2
from prometheus_client.parser import text_string_to_metric_families

from headrace.testing.case import Case
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from headrace.wire.codec import Value, decode_values, encode_values
from headrace.wire.errors import ErrorDetails, from_status, from_trailing_metadata
from headrace.wire.parameters import decode_parameter
from tests.support.patience import PATIENCE_SECONDS

CALL_SECONDS = PATIENCE_SECONDS
# For servers that a test starts for itself: other installed devices make each start seconds longer.
BASIC = ("--devices", "CPU,TEMPLATE")
_MESSAGE_BYTES = 256 << 20


class Server:
    """One server process. `stop` and `kill` end it; leaving the context kills what is left."""

    def __init__(
        self,
        *options: str,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),  # a program that starts the server
    ) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self.process = started([*before, *command_line(options)], self._log, environment or {})
        assert self.process.stdout is not None
        with self.process.stdout as output:
            line = output.readline()  # ends when the server is ready, or with the process
        if not line:
            self.process.wait(PATIENCE_SECONDS)
            raise AssertionError(f"the server did not start:\n{self.log()}")
        addresses = json.loads(line)
        self.address: str = addresses["grpc"]
        self.http: str = addresses["http"]
        self.unix: str = addresses.get("unix", "")
        self.channel = self.connect()
        self.stub: Any = rpc.InferenceEngineStub(self.channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.kill()
        self._log.close()

    def connect(self) -> Any:
        """A further connection."""
        options = [
            ("grpc.max_send_message_length", _MESSAGE_BYTES),
            ("grpc.max_receive_message_length", _MESSAGE_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        return grpc.insecure_channel(self.address, options)

    def log(self) -> str:
        """What the server has written to stderr."""
        size = self._log.seek(0, os.SEEK_END)
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.terminate()
        return self.process.wait(CALL_SECONDS)

    def kill(self) -> None:
        """SIGKILL, if the process still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(CALL_SECONDS)

    def get(self, path: str) -> str:
        """The text that the HTTP port answers with."""
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=CALL_SECONDS) as reply:
            return str(reply.read().decode())

    def scrape(self, *prefixes: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Samples by name and sorted labels: those whose name has one of the prefixes, or all."""
        lines = self.get("/metrics").splitlines(keepends=True)
        wanted = [line for line in lines if line.startswith(prefixes or "")]  # parsing is slow
        families = text_string_to_metric_families("".join(wanted))
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry the labels."""
        return sum(
            value
            for (sample, found), value in self.scrape(name).items()
            if sample == name and labels.items() <= dict(found).items()
        )

    def metric(self, name: str, device: str) -> Any:
        """A metric of the device."""
        request = pb.GetMetricRequest(target=pb.Target(device=device), name=name)
        return decode_parameter(self.stub.GetMetric(request, timeout=CALL_SECONDS).value)

    def devices(self) -> list[str]:
        """Names of the devices that are up."""
        reply = self.stub.ListDevices(pb.ListDevicesRequest(), timeout=CALL_SECONDS)
        return [device.name for device in reply.devices if device.state == pb.UP]

    # -- networks --

    def load(
        self, case: Case, device: str, name: str = "", config: Mapping[str, str] | None = None
    ) -> pb.NetworkInfo:
        """Loads the case's model; its own name is the network's unless told otherwise."""
        request = pb.LoadNetworkRequest(
            name=name or case.name,
            model=pb.ModelSource(data=case.model.SerializeToString()),
            device=device,
            config=config or {},
        )
        info: pb.NetworkInfo = self.stub.LoadNetwork(request, timeout=CALL_SECONDS)
        return info

    def unload(self, *names: str) -> None:
        for name in names:
            self.stub.UnloadNetwork(pb.UnloadNetworkRequest(name=name), timeout=CALL_SECONDS)

    def networks(self) -> list[str]:
        """Names of the networks that are ready."""
        reply = self.stub.ListNetworks(pb.ListNetworksRequest(), timeout=CALL_SECONDS)
        return sorted(each.name for each in reply.networks if each.state == pb.READY)

    def start(
        self,
        network: str,
        inputs: Mapping[str, Any],
        *,
        timeout: float = CALL_SECONDS,
        **fields: Any,
    ) -> Any:
        """A unary call under way."""
        return self.stub.Infer.future(infer_request(network, inputs, **fields), timeout=timeout)

    def infer(self, network: str, inputs: Mapping[str, Any], **fields: Any) -> dict[str, Value]:
        """The outputs by name."""
        request = infer_request(network, inputs, **fields)
        reply = self.stub.Infer(request, timeout=CALL_SECONDS)
        return decode_values(reply.outputs, reply.attachments, "outputs")

    def import_blob(self, blob: bytes, name: str, device: str = "") -> pb.NetworkInfo:
        parts = [
            pb.ImportNetworkRequest(options=pb.ImportOptions(name=name, device=device)),
            pb.ImportNetworkRequest(chunk=blob),
        ]
        info: pb.NetworkInfo = self.stub.ImportNetwork(iter(parts), timeout=CALL_SECONDS)
        return info

    def export(self, name: str) -> bytes:
        replies = self.stub.ExportNetwork(pb.ExportNetworkRequest(name=name), timeout=CALL_SECONDS)
        return b"".join(reply.chunk for reply in replies)


def refused_start(*options: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Starts a server that cannot start; its exit code, and what it said on stderr."""
    with tempfile.TemporaryFile() as log:
        process = started(command_line(options), log, environment or {})
        assert process.stdout is not None
        with process.stdout as output:
            assert not output.readline()
        code = process.wait(PATIENCE_SECONDS)
        log.seek(0)
        return code, log.read().decode()


def started(
    command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A server's process."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**os.environ, **environment},
    )


def command_line(options: Iterable[str]) -> list[str]:
    """What starts a server on free ports, unless the options say otherwise."""
    command = [sys.executable, "-m", "headrace.server", "--json"]
    return [*command, "--port", "0", "--http-port", "0", *options]


class Stream:
    """One InferStream, written and read by the test's own thread."""

    def __init__(self, stub: Any, timeout: float = CALL_SECONDS) -> None:
        self._outgoing: queue.SimpleQueue[pb.InferStreamRequest | None] = queue.SimpleQueue()
        self.call = stub.InferStream(iter(self._outgoing.get, None), timeout=timeout)
        self.results = self._read()

    def send(self, *requests: pb.InferRequest, cancel: Iterable[str] = ()) -> None:
        self._outgoing.put(pb.InferStreamRequest(requests=requests, cancel=cancel))

    def done(self) -> None:
        """No more requests will come."""
        self._outgoing.put(None)

    def next(self) -> pb.InferStreamResult:
        return next(self.results)

    def _read(self) -> Iterator[pb.InferStreamResult]:
        for reply in self.call:
            yield from reply.results


def until(condition: Callable[[], object], what: str = "it was to come") -> None:
    """Asks the server again and again until the condition holds.

    Raises:
        AssertionError: it did not within `CALL_SECONDS`.
    """
    end = time.monotonic() + CALL_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"{what}, and did not"
        pause.wait(0.02)  # what is waited for happens in another process


def is_running(server: Server, device: str) -> bool:
    """Whether the device runs exactly one request."""
    return bool(server.metric("NUMBER_OF_EXEC_INFER_REQUESTS", device) == 1)


def infer_request(network: str, inputs: Mapping[str, Any], **fields: Any) -> pb.InferRequest:
    """The message; `fields` are those of InferRequest."""
    request = pb.InferRequest(network=network, **fields)
    parts: list[Any] = []
    encode_values(inputs, request.inputs, parts, "inputs")
    request.attachments.extend(bytes(part) for part in parts)
    return request


def outcome_of(result: pb.InferStreamResult) -> str:
    """OK, or the status' name."""
    if result.WhichOneof("result") == "reply":
        return "OK"
    return str(from_status(result.error).code.name)


def changes(loaded: Any) -> list[str]:
    """The notes of a load without the last one, which tells what its stages took."""
    notes, stages = list(loaded.notes[:-1]), loaded.notes[-1]
    assert stages.startswith("loaded by stage: "), stages
    return notes


def details_of(error: grpc.RpcError | status_pb2.Status) -> ErrorDetails:
    """All that the server said of an error."""
    if isinstance(error, status_pb2.Status):
        return from_status(error)
    call: Any = error
    return from_trailing_metadata(call.code(), call.details() or "", call.trailing_metadata())


def assert_settled(server: Server) -> None:
    """Nothing waits or runs, and every accepted request has exactly one outcome.

    A request leaves its queue and its stream a moment before or after it is counted.
    """

    def settled() -> bool:
        accepted, finished = Counter[Any](), Counter[Any]()
        for (name, labels), value in server.scrape("headrace_device", "headrace_network").items():
            if value and name in ("headrace_device_queue_depth", "headrace_device_streams_busy"):
                return False
            what = tuple(label for label in labels if label[0] != "outcome")
            for scope in ("device", "network"):
                if name == f"headrace_{scope}_accepted_total":
                    accepted[scope, what] += int(value)
                elif name == f"headrace_{scope}_requests_total":
                    finished[scope, what] += int(value)
        return accepted == finished

    until(settled, "all work was to end, each accepted request with one outcome")
