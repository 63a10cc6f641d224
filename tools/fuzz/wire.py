"""Sends mutated messages to every method of a server, and mutated frames: `make fuzz-wire`.

Messages that are right are changed a little, at random, and sent, alone or behind one that is
right. Every call has to end with a status that blames the caller, or none; the counters have to be
exact afterwards, the log without a traceback, and health has to be answered meanwhile. What the
same seed sends is always the same; in which order it arrives is not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from headrace.oip import open_inference_pb2 as oip
from headrace.server.services.uploads import MAX_MODELS
from headrace.testing import networks
from headrace.testing.case import Case
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import CodecError
from headrace.wire.errors import from_status, from_trailing_metadata
from headrace.wire.stream import parse_infer_stream_reply
from tests.integration.harness import CALL_SECONDS, Server, assert_settled, infer_request
from tests.support.open_inference import infer_request as opened_request
from tests.support.open_inference import parameters, requested, with_external_weight
from tests.support.stateful import SUM, SUM_STATES, number

OPENED = "inference.GRPCInferenceService"
SERVICE, HEALTH = "headrace.v1.InferenceEngine", "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
VICTIM, SOUND, REMEMBERS = "victim", "sound", "remembers"
REPLACED = (VICTIM, REMEMBERS)
"""The networks that messages unload and load."""
DEVICES = ("--devices", "CPU,TEMPLATE,HETERO", "--allow-client-shared-memory")
CALLERS = 8
LOG_CHARACTERS = 5000
MORE = 40  # threads of pools, and connections
# What a message can deserve. DEADLINE_EXCEEDED may be what the message asked for.
DESERVED = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "UNIMPLEMENTED",
    "DEADLINE_EXCEEDED",
}
LOADING = {f"network {name!r} is still being loaded" for name in REPLACED}


def seeds(server: Server) -> dict[str, list[bytes]]:
    """Messages that are right, by the path of their method."""
    case = networks.add()
    model = case.model.SerializeToString()
    source, device = pb.ModelSource(data=model), pb.Target(device="CPU")
    infer = infer_request(VICTIM, case.inputs, id="a", outputs=["z"], timeout_seconds=5.0)
    begin, go_on = (
        infer_request(REMEMBERS, number(1.0), id="s", session=pb.Session(id="s", start=start))
        for start in (True, False)
    )
    end = pb.InferRequest(network=REMEMBERS, id="e", session=pb.Session(id="s", end=True))
    keeping = pb.LoadNetworkRequest(
        name=REMEMBERS,
        model=pb.ModelSource(data=SUM.SerializeToString()),
        device="TEMPLATE",
        replace=True,
        config={"STATES": SUM_STATES, "SEQUENCE_CAPACITY": "50"},
    )
    config = {"NUM_STREAMS": "1"}
    load = pb.LoadNetworkRequest(
        name=VICTIM,
        model=source,
        device="CPU",
        replace=True,
        config=config,
        inputs={"x": pb.InputOptions(dtype=pb.UINT8)},
    )
    plain = pb.LoadNetworkRequest(name=VICTIM, model=source, device="TEMPLATE", replace=True)
    query = pb.QueryNetworkRequest(model=source, device="HETERO:CPU,TEMPLATE", graph=True)
    messages: dict[str, list[Any]] = {
        f"{SERVICE}/UploadModel": [pb.UploadModelRequest(chunk=model)],
        f"{SERVICE}/LoadNetwork": [load, plain, keeping],
        f"{SERVICE}/UnloadNetwork": [pb.UnloadNetworkRequest(name="nobody")],
        f"{SERVICE}/ListNetworks": [pb.ListNetworksRequest()],
        f"{SERVICE}/GetNetwork": [pb.GetNetworkRequest(name=VICTIM)],
        f"{SERVICE}/QueryNetwork": [query],
        f"{SERVICE}/Infer": [infer, begin, go_on, end],
        f"{SERVICE}/InferStream": [
            pb.InferStreamRequest(requests=[infer], cancel=["b"]),
            pb.InferStreamRequest(requests=[begin, go_on, end]),
        ],
        f"{SERVICE}/GetMetric": [pb.GetMetricRequest(target=device, name="FULL_DEVICE_NAME")],
        f"{SERVICE}/GetConfig": [pb.GetConfigRequest(target=device, name="NUM_STREAMS")],
        f"{SERVICE}/SetConfig": [
            pb.SetConfigRequest(target=pb.Target(network=VICTIM), config={"EXECUTION_TIMEOUT": "5"})
        ],
        f"{SERVICE}/ImportNetwork": [
            pb.ImportNetworkRequest(options=pb.ImportOptions(name=VICTIM, replace=True)),
            pb.ImportNetworkRequest(chunk=server.export(VICTIM)),
        ],
        f"{SERVICE}/ExportNetwork": [pb.ExportNetworkRequest(name=VICTIM)],
        f"{SERVICE}/AddExtension": [
            pb.AddExtensionRequest(
                device="CPU", functions=networks.local_function().model.SerializeToString()
            )
        ],
        f"{SERVICE}/SetTraffic": [pb.SetTrafficRequest(network=VICTIM, shares={"1": 100})],
        f"{SERVICE}/SetShadow": [pb.SetShadowRequest(network=VICTIM, version="1", percent=5)],
        f"{SERVICE}/ListRepository": [pb.ListRepositoryRequest()],
        f"{SERVICE}/ListDevices": [pb.ListDevicesRequest()],
        f"{SERVICE}/RegisterSharedMemory": [
            pb.RegisterSharedMemoryRequest(name="r", key="/nobody", bytes=24)
        ],
        f"{SERVICE}/UnregisterSharedMemory": [pb.UnregisterSharedMemoryRequest(name="r")],
        f"{SERVICE}/ListSharedMemory": [pb.ListSharedMemoryRequest()],
        f"{HEALTH}/Check": [health_pb2.HealthCheckRequest(service=VICTIM)],
        f"{HEALTH}/List": [health_pb2.HealthListRequest()],
        f"{HEALTH}/Watch": [health_pb2.HealthCheckRequest(service=VICTIM)],
        f"{REFLECTION}/ServerReflectionInfo": [
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
        ],
    }
    messages |= {f"{OPENED}/{name}": some for name, some in opened_seeds(model, case).items()}
    return {path: [each.SerializeToString() for each in some] for path, some in messages.items()}


def opened_seeds(model: bytes, case: Case) -> dict[str, list[Any]]:
    """Those of the Open Inference Protocol, by method."""
    given = {"priority": 1, "timeout": 5_000_000}
    infer = opened_request(VICTIM, case.inputs, id="a", parameters=parameters(given))
    infer.outputs.append(requested("z", classification=1))
    typed = opened_request(VICTIM, case.inputs)
    del typed.raw_input_contents[:]
    for each, value in zip(typed.inputs, case.inputs.values(), strict=True):
        each.contents.fp32_contents.extend(np.asarray(value).reshape(-1).tolist())
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 24}
    shared = opened_request(VICTIM, case.inputs, outputs=[requested("z", **place)])
    config = {
        "version_policy": {"all": {}},
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "output": [{"name": "z", "label_filename": "labels"}],
    }
    files = {"file:1/model.onnx": model, "file:labels": b"a", "config": json.dumps(config)}
    load = oip.RepositoryModelLoadRequest(
        model_name=VICTIM, parameters=parameters(files, oip.ModelRepositoryParameter)
    )
    outside = {
        "file:1/model.onnx": with_external_weight(case.model, "w.bin").SerializeToString(),
        "file:1/w.bin": bytes(24),
    }
    load_outside = oip.RepositoryModelLoadRequest(
        model_name=VICTIM, parameters=parameters(outside, oip.ModelRepositoryParameter)
    )
    register = oip.SystemSharedMemoryRegisterRequest(name="r", key="/nobody", byte_size=24)
    level = oip.LogSettingsRequest.SettingValue(bool_param=True)
    traced = oip.TraceSettingRequest.SettingValue(value=["OFF"])
    return {
        "ServerLive": [oip.ServerLiveRequest()],
        "ServerReady": [oip.ServerReadyRequest()],
        "ServerMetadata": [oip.ServerMetadataRequest()],
        "ModelReady": [oip.ModelReadyRequest(name=VICTIM, version="1")],
        "ModelMetadata": [oip.ModelMetadataRequest(name=VICTIM, version="1")],
        "ModelConfig": [oip.ModelConfigRequest(name=VICTIM)],
        "ModelStatistics": [oip.ModelStatisticsRequest(name=VICTIM)],
        "ModelInfer": [infer, typed, shared],
        "ModelStreamInfer": [infer, typed, shared],
        "RepositoryIndex": [oip.RepositoryIndexRequest(ready=True)],
        "RepositoryModelLoad": [load, load_outside],
        "RepositoryModelUnload": [oip.RepositoryModelUnloadRequest(model_name="nobody")],
        "SystemSharedMemoryStatus": [oip.SystemSharedMemoryStatusRequest()],
        "SystemSharedMemoryRegister": [register],
        "SystemSharedMemoryUnregister": [oip.SystemSharedMemoryUnregisterRequest(name="r")],
        "CudaSharedMemoryStatus": [oip.CudaSharedMemoryStatusRequest()],
        "CudaSharedMemoryRegister": [oip.CudaSharedMemoryRegisterRequest(name="r")],
        "CudaSharedMemoryUnregister": [oip.CudaSharedMemoryUnregisterRequest(name="r")],
        "LogSettings": [oip.LogSettingsRequest(settings={"log_info": level})],
        "TraceSetting": [oip.TraceSettingRequest(settings={"trace_level": traced})],
    }


def mutated(dice: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The bytes, changed in one to four places."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(changed) + 1)
        end = min(len(changed), at + dice.choice((1, 2, 8, 64)))
        match dice.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << dice.randrange(8)
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = dice.randbytes(end - at + 1)
            case 3:
                changed[at:at] = changed[at:end] * dice.choice((1, 3, 50))
            case 4:
                changed[at:end] = dice.choice((b"\xff" * 9 + b"\x01", b"\x00", b"\x80\x80\x04"))
            case 5:
                other = dice.choice(others)
                start = dice.randrange(len(other) + 1)
                changed[at:at] = other[start : start + 64]
            case _:
                del changed[at:]
    return bytes(changed)


@dataclass
class Fuzz:
    """What happened so far. Thread-safe; `_lock` guards it."""

    server: Server
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    sent: int = 0
    slowest_probe: float = 0.0
    probes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, channel: Any, path: str, messages: list[bytes], leave: bool) -> None:
        """Makes one call, which is given up after its first reply if `leave`."""
        call = channel.stream_stream(f"/{path}")(iter(messages), timeout=CALL_SECONDS)
        results: Counter[str] = Counter()
        try:
            for reply in call:
                if path.endswith("/InferStream"):
                    results.update(map(_outcome, parse_infer_stream_reply(reply).results))
                elif path.endswith("/ModelStreamInfer"):
                    said = oip.ModelStreamInferResponse.FromString(reply).error_message
                    results["INTERNAL" if "internal error" in said else "OK"] += 1
                if leave:
                    call.cancel()
        except grpc.RpcError:
            pass
        except CodecError as error:
            results[str(error)] += 1
        code, said = call.code().name, call.details() or ""
        told = from_trailing_metadata(call.code(), said, call.trailing_metadata())
        # Of the client's own making: the server gave no status in time.
        late = code == "DEADLINE_EXCEEDED" and not told.reason
        good = is_deserved(code, said) and not late and results.keys() <= {"OK", "CANCELLED"}
        with self._lock:
            self.sent += len(messages)
            self.statuses[path.rpartition("/")[2], "(left)" if leave else code] += 1
            if not good and not leave:
                sent = [
                    each.hex() if len(each) < 4096 else f"{len(each)} bytes" for each in messages
                ]
                self.faults.append(f"{path}: {code} {said[:200]!r} {dict(results)} for {sent}")

    def probe(self, stop: threading.Event) -> None:
        """Asks for health again and again, on a connection of its own."""
        case = networks.add()
        with self.server.connect() as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while not stop.wait(0.02):
                began = time.monotonic()
                try:
                    health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
                    self.server.infer(SOUND, case.inputs)
                except grpc.RpcError as error:
                    self.faults.append(f"a probe failed: {error}")
                self.probes += 1
                self.slowest_probe = max(self.slowest_probe, time.monotonic() - began)


def is_deserved(code: str, said: str) -> bool:
    """Whether a message may end with this status and text. Only a network that another message
    loads at that time may be unavailable."""
    return code in DESERVED or (code == "UNAVAILABLE" and said in LOADING)


def _outcome(result: Any) -> str:
    """ "OK" for a result that the message deserves, too."""
    if result.error is None:
        return "OK"
    told = from_status(result.error)
    return "OK" if is_deserved(told.code.name, told.message) else str(told.code.name)


def plans(
    dice: random.Random, right: dict[str, list[bytes]], number: int
) -> Iterator[tuple[str, list[bytes], bool]]:
    """Calls with that many messages together: path, messages, and whether the caller leaves."""
    everything = [message for some in right.values() for message in some]
    while number > 0:
        path = dice.choice(list(right))
        messages = [mutated(dice, each, everything) for each in right[path]]
        choice = dice.random()
        if choice < 0.15:
            messages = right[path]
        elif choice < 0.3:
            messages = [*right[path], *messages]
        # A watch, and only a watch, has no end of its own.
        leave = path.endswith("/Watch") or dice.random() < 0.03
        yield path, messages, leave
        number -= len(messages)


def prepare(server: Server) -> dict[str, list[bytes]]:
    """Loads what the calls need. Returns `seeds`."""
    case = networks.add()
    for name in {VICTIM, SOUND}.difference(server.networks()):
        server.load(case, "CPU", name)
    if REMEMBERS not in server.networks():
        server.load(Case(REMEMBERS, SUM, {}), "CPU", config={"STATES": SUM_STATES})
    return seeds(server)


def fuzz(server: Server, number: int, seed: int) -> Fuzz:
    """Sends that many messages and more to the server, whose devices are those of `DEVICES`."""
    right = prepare(server)
    state, stop = Fuzz(server), threading.Event()
    prober = threading.Thread(target=state.probe, args=(stop,))
    prober.start()
    channels = [server.connect() for _ in range(CALLERS)]
    room = threading.Semaphore(4 * CALLERS)  # plans that are made ahead
    with ThreadPoolExecutor(CALLERS) as pool:
        for index, plan in enumerate(plans(random.Random(seed), right, number)):
            room.acquire()
            task = pool.submit(state.call, channels[index % CALLERS], *plan)
            task.add_done_callback(lambda _: room.release())
    stop.set()
    prober.join()
    for channel in channels:
        channel.close()
    return state


class Resources(NamedTuple):
    """What the server's process has. `uploads` are the files of uploaded models, which the server
    keeps until newer ones come; `descriptors` are all others."""

    megabytes: int
    threads: int
    descriptors: int
    uploads: int

    def leaks_since(self, before: Resources) -> list[str]:
        """What has become more than it may."""
        found = []
        if self.descriptors > before.descriptors + MORE:
            found.append(f"{self.descriptors} descriptors, before {before.descriptors}")
        if self.threads > before.threads + MORE:
            found.append(f"{self.threads} threads, before {before.threads}")
        if self.uploads > MAX_MODELS + MORE:  # a network may still use one that was dropped
            found.append(f"{self.uploads} uploads are kept, more than {MAX_MODELS}")
        return found


def resources(server: Server) -> Resources:
    """What the server's process has now."""
    folder = Path(f"/proc/{server.process.pid}")
    pages = int((folder / "statm").read_text().split()[1])
    threads = len([*(folder / "task").iterdir()])
    opened = []
    for each in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            opened.append(str(each.readlink()))
    place = f"{tempfile.gettempdir()}/"
    uploads = [each for each in opened if each.startswith(place) and each.endswith(" (deleted)")]
    megabytes = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return Resources(megabytes, threads, len(opened) - len(uploads), len(uploads))


def send_messages(server: Server, number: int, seed: int) -> list[str]:
    """Sends mutated messages, and prints what happened. Returns the faults."""
    state = fuzz(server, number, seed)
    for (method, code), count in sorted(state.statuses.items()):
        print(f"{method:22} {code:20} {count:7}")
    print(f"{state.sent} messages in {state.statuses.total()} calls")
    print(f"{state.probes} probes, the slowest {state.slowest_probe:.2f} s")
    return state.faults


def send_frames(server: Server, number: int, seed: int) -> list[str]:
    """Sends mutated conversations, and prints what happened. Returns the faults."""
    from tools.fuzz.frames import fuzz_frames  # which mutates messages as this module does

    state = fuzz_frames(server, number, seed)
    for said, count in sorted(state.said.items()):
        print(f"{said:43} {count:7}")
    print(f"{state.sent} conversations, the slowest {state.slowest:.2f} s")
    print(f"{state.answered} calls in between, all answered right")
    return state.faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, help="0 for none; 100,000 without --frames")
    parser.add_argument("--frames", type=int, help="0 for none; 20,000 without --messages")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--front-end", choices=("native", "grpcio"), default="native")
    arguments = parser.parse_args()
    messages, sequences = arguments.messages, arguments.frames
    if messages is None and sequences is None:
        messages, sequences = 100_000, 20_000
    if arguments.front_end == "grpcio":  # which ends after a path that is not UTF-8
        sequences = 0
    faults: list[str] = []
    with Server(*DEVICES, "--front-end", arguments.front_end) as server:
        for send, number in ((send_messages, messages), (send_frames, sequences)):
            if not number:
                continue
            with contextlib.redirect_stdout(io.StringIO()):
                faults += send(server, 1000, arguments.seed + 1)  # what is made once, is made now
            before, began = resources(server), time.monotonic()
            faults += send(server, number, arguments.seed)
            print(f"{time.monotonic() - began:.0f} s")
            assert_settled(server)
            after = resources(server)
            print(f"before: {before}\nafter:  {after}")
            faults += after.leaks_since(before)
        ended, log = server.stop(), server.log()
        faults += [f"exit code {ended}"] * (ended != 0)
        if (at := log.find("Traceback")) >= 0:
            faults.append(f"a traceback in the log: {log[at : at + LOG_CHARACTERS]}")
        for fault in faults[:20]:
            print(fault)
        raise SystemExit(f"{len(faults)} faults" if faults else 0)


if __name__ == "__main__":
    main()
