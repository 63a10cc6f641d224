"""Sends mutated requests to every path of a server's HTTP port: `make fuzz-rest`.

Requests that are right are changed a little, at random: their JSON, the bytes of their body, or all
of their bytes. Every one that arrives as HTTP has to be answered with a status that blames the
client, or none; the counters have to be exact afterwards, the log without a traceback, and probes
have to be answered meanwhile. What the same seed sends is always the same.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import http.client
import json
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from headrace.testing import networks
from tests.integration.harness import CALL_SECONDS, Server, assert_settled
from tools.fuzz.wire import mutated, resources

VICTIM, SOUND = "victim", "sound"
DEVICES = ("--devices", "CPU,TEMPLATE")
LENGTH = "Inference-Header-Content-Length"
CALLERS = 8
# What a request can deserve. 503 and 504 may be what it asked for: a model that is being loaded or
# is not ready, and a deadline.
DESERVED = {200, 400, 404, 405, 409, 411, 413, 415, 429, 431, 501, 503, 504}
JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64 - 1,
    -(2**63),
    0.5,
    1e308,
    1e-320,
    "",
    "x",
    "x" * 5000,
    "\x00",
    "é",
    "🙂",
    "INT64",
    "BYTES",
    "FP16",
    "true",
    "\\ud800",
    "../..",
    [],
    {},
    [[]],
    [1] * 100,
    [[1], [2, 3]],
    {"": ""},
    [None],
    [[[[[[[[1]]]]]]]],
)
# Text in place of a value: what is no JSON, or is JSON that parsers differ about.
RAW = (b"NaN", b"1e999", b"-0", b'"\\ud800"', b"[" * 2000, b'{"a":1,"a":2}', b"01", b"\xff", b"")


class Sent(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def raw(self) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: h"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode() + self.body


def seeds() -> list[Sent]:
    """Requests that are right, some of each path."""
    arrays = {name: np.asarray(array) for name, array in networks.add().inputs.items()}
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": "FP32", "data": array.tolist()}
        for name, array in arrays.items()
    ]
    binary = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    tail = b"".join(array.tobytes() for array in arrays.values())
    outputs = [{"name": "z", "parameters": {"binary_data": True}}]
    parameters = {"priority": 2, "timeout": 5_000_000, "binary_data_output": False}
    shared = [{**each, "parameters": {"shared_memory_region": "r"}} for each in binary]
    infer = f"/v2/models/{VICTIM}/infer"
    full = {"id": "a:b", "inputs": inputs, "outputs": outputs, "parameters": parameters}
    text = json.dumps({"inputs": binary, "outputs": outputs}).encode()
    plain = json.dumps({"inputs": inputs}).encode()
    config = json.dumps({"max_batch_size": 0, "backend": "onnxruntime"})
    control: dict[str, Any] = {
        "/v2/repository/index": {"ready": True},
        f"/v2/repository/models/{VICTIM}/load": {"parameters": {"config": config}},
        "/v2/repository/models/nobody/unload": {"parameters": {"unload_dependents": False}},
        "/v2/systemsharedmemory/region/r/register": {"key": "/k", "offset": 0, "byte_size": 8},
        "/v2/systemsharedmemory/region/r/unregister": {},
        "/v2/systemsharedmemory/unregister": {},
        "/v2/cudasharedmemory/region/r/register": {"raw_handle": {"b64": ""}, "byte_size": 8},
        "/v2/logging": {"log_info": True},
        "/v2/trace/setting": {"trace_level": ["OFF"]},
    }
    asked = (
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        f"/v2/models/{VICTIM}",
        "/v2/models/stats",
        *(f"/v2/models/{VICTIM}/versions/1/{each}" for each in ("ready", "config", "stats")),
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/region/r/status",
        "/v2/logging",
        "/v2/openapi.json",
        "/v2/docs",
        "/metrics",
        "/healthz",
        "/readyz",
    )
    return [
        Sent("POST", infer, {}, json.dumps(full).encode()),
        Sent("POST", infer, {"Accept-Encoding": "gzip"}, plain),
        Sent("POST", infer, {LENGTH: str(len(text))}, text + tail),
        Sent("POST", infer, {"Content-Encoding": "gzip"}, gzip.compress(plain, mtime=0)),
        Sent("POST", infer, {}, json.dumps({"inputs": shared}).encode()),
        *(Sent("POST", path, {}, json.dumps(body).encode()) for path, body in control.items()),
        *(Sent("GET", path, {}, b"") for path in asked),
    ]


def changed(dice: random.Random, value: Any) -> Any:
    """The JSON value with one of its parts replaced, removed, renamed or repeated."""
    whole = [copy.deepcopy(value)]
    places: list[tuple[Any, Any]] = [(whole, 0)]
    for holder, key in places:
        inner = holder[key]
        if isinstance(inner, dict):
            places += [(inner, each) for each in inner]
        elif isinstance(inner, list):
            places += [(inner, index) for index in range(min(len(inner), 8))]
    holder, key = dice.choice(places)
    choice = dice.randrange(5)
    if choice == 0 and holder is not whole:
        del holder[key]
    elif choice == 1 and isinstance(holder, dict):
        holder[dice.choice(("x", "data", key + "s", key.upper(), ""))] = holder.pop(key)
    elif choice == 2 and isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key])] * dice.choice((1, 2, 50))
    else:
        holder[key] = copy.deepcopy(dice.choice(JUNK))
    return whole[0]


def mutate(dice: random.Random, right: Sent, others: list[bytes]) -> Sent:
    """The request with its JSON, its body or a header changed."""
    headers, body = dict(right.headers), right.body
    choice = dice.random()
    if choice < 0.5 and body.startswith(b"{") and LENGTH not in headers:
        for _ in range(dice.randint(1, 3)):
            body = json.dumps(changed(dice, json.loads(body))).encode()
        if dice.random() < 0.2:
            at = body.find(b": ", dice.randrange(len(body) + 1)) + 2
            body = body[:at] + dice.choice(RAW) + body[at:].partition(b",")[2]
    elif choice < 0.8 and body:
        body = mutated(dice, body, others)
    else:
        name = dice.choice(
            (LENGTH, "Content-Encoding", "Accept-Encoding", "X-Request-Id", "Expect")
        )
        values = ("", "0", "7", "-1", "99999999", "gzip", "deflate", "x" * 300, "100-continue", "é")
        headers[name] = dice.choice(values).encode().decode("latin-1")
    if dice.random() < 0.05:
        method = dice.choice(("GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH"))
        return Sent(method, right.path, headers, body)
    return Sent(right.method, right.path, headers, body)


@dataclass
class Fuzz:
    """What happened so far. Thread-safe; `_lock` guards it."""

    server: Server
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_probe: float = 0.0
    probes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self) -> socket.socket:
        host, _, port = self.server.http.rpartition(":")
        return socket.create_connection((host, int(port)), CALL_SECONDS)

    def ask(self, plans: list[tuple[Sent, bytes | None]]) -> None:
        """Sends requests; those with other bytes of their own on connections of their own."""
        client = self.connect()
        for sent, raw in plans:
            if raw is not None:
                with self.connect() as other:
                    self._note(sent, raw, *_until_closed(other, raw))
                continue
            try:
                client.sendall(sent.raw)
                answer = http.client.HTTPResponse(client, method=sent.method)
                answer.begin()
                body = answer.read()
                self._note(sent, sent.raw, answer.status, body)
                if not answer.will_close:
                    continue
            except (OSError, http.client.HTTPException) as error:
                with self._lock:
                    self.faults.append(f"{error!r} for {sent.raw[:500]!r}")
            client.close()
            client = self.connect()
        client.close()

    def _note(self, sent: Sent, raw: bytes, status: int, body: bytes) -> None:
        is_error = status >= 400 and sent.path.startswith("/v2")
        says = not is_error or not body or body.startswith((b'{"error"', b'{"ready"', b'{"name"'))
        with self._lock:
            self.statuses[sent.path, status] += 1
            if status not in DESERVED | {0} or not (says or raw is not sent.raw):
                self.faults.append(f"{status} {body[:300]!r} for {raw[:2000]!r}")

    def probe(self, stop: threading.Event) -> None:
        """Asks the probes and a sound network, again and again."""
        case = networks.add()
        while not stop.wait(0.02):
            began = time.monotonic()
            try:
                assert self.server.get("/healthz") == "alive\n"
                self.server.infer(SOUND, case.inputs)
            except (OSError, AssertionError) as error:
                with self._lock:
                    self.faults.append(f"a probe failed: {error!r}")
            self.probes += 1
            self.slowest_probe = max(self.slowest_probe, time.monotonic() - began)


def _until_closed(client: socket.socket, raw: bytes) -> tuple[int, bytes]:
    """Status and body of the first reply to these bytes, after which nothing comes; 0: none."""
    received = b""
    try:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        while data := client.recv(1 << 16):
            received += data
    except OSError:  # reset, for the server had enough
        pass
    head, _, body = received.partition(b"\r\n\r\n")
    parts = head.split(b" ", 2)
    return (int(parts[1]), body) if len(parts) == 3 and parts[1] != b"100" else (0, b"")


def plans(dice: random.Random, number: int) -> Iterator[list[tuple[Sent, bytes | None]]]:
    """That many requests, in the lots in which one caller sends them."""
    right = seeds()
    bodies = [each.body for each in right if each.body]
    raws = [each.raw for each in right]
    while number > 0:
        lot: list[tuple[Sent, bytes | None]] = []
        for _ in range(50):
            sent = dice.choice(right)
            choice = dice.random()
            if choice < 0.15:
                lot.append((sent, mutated(dice, sent.raw, raws)))
            elif choice < 0.2:
                lot.append((sent, None))
            else:
                lot.append((mutate(dice, sent, bodies), None))
        yield lot
        number -= len(lot)


def fuzz(server: Server, number: int, seed: int) -> Fuzz:
    """Sends that many requests and more to a server whose repository `repository` has made."""
    state, stop = Fuzz(server), threading.Event()
    prober = threading.Thread(target=state.probe, args=(stop,))
    prober.start()
    room = threading.Semaphore(2 * CALLERS)  # lots that are made ahead
    with ThreadPoolExecutor(CALLERS) as pool:
        for lot in plans(random.Random(seed), number):
            room.acquire()
            pool.submit(state.ask, lot).add_done_callback(lambda _: room.release())
    stop.set()
    prober.join()
    return state


def repository(folder: Path) -> tuple[str, ...]:
    """The options of a server with the networks that are asked; they are put into the folder."""
    for name in (VICTIM, SOUND):
        (folder / name).mkdir()
        onnx.save(networks.add().model, folder / name / "model.onnx")
    return (*DEVICES, "--model-repository", str(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server(*repository(Path(folder))) as server:
        fuzz(server, 1000, arguments.seed + 1)  # what is made once, is made now
        before, began = resources(server), time.monotonic()
        state = fuzz(server, arguments.requests, arguments.seed)
        seconds = time.monotonic() - began
        for (path, status), count in sorted(state.statuses.items()):
            print(f"{path:50} {status or 'closed'!s:6} {count:7}")
        print(f"{state.statuses.total()} requests, {seconds:.0f} s")
        print(f"{state.probes} probes, the slowest {state.slowest_probe:.2f} s")
        after = resources(server)
        print(f"before: {before}\nafter:  {after}")
        state.faults += after.leaks_since(before)
        assert_settled(server)
        ended, log = server.stop(), server.log()
        state.faults += [f"exit code {ended}"] * (ended != 0)
        state.faults += ["a traceback in the log"] * ("Traceback" in log)
        for fault in state.faults[:20]:
            print(fault)
        raise SystemExit(f"{len(state.faults)} faults" if state.faults else 0)


if __name__ == "__main__":
    main()
