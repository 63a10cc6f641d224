"""A server with TLS, tokens and a repository, on which everything happens that dashboards show."""

from __future__ import annotations

import json
import os
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from headrace.client import Client, Error
from headrace.server.access.token_file import add_token
from headrace.server.transport.new_certificates import write_certificates
from headrace.testing import networks
from headrace.testing.case import Case, parse
from tests.integration.harness import CALL_SECONDS, Server
from tests.support.stateful import SUM, SUM_STATES
from tests.support.web_server import web_server

MAGIKA = Path(__file__).parents[2] / ".cache" / "magika" / "model.onnx"
_CONFIGURATION = """
[plugins.TEMPLATE.config]
NUM_STREAMS = "1"
QUEUE_CAPACITY = "8"

[plugins.APART]
device = "CPU"
[plugins.APART.config]
ISOLATION = "PROCESS"

[plugins.FAULTY]
factory = "tests.support.faulty_device:create_plugin"
[plugins.FAULTY.config]
FAULT = "bug"

[plugins.KEPT]
factory = "tests.support.exporting_device:create_plugin"

[plugins.STUCK]
device = "TEMPLATE"
[plugins.STUCK.config]
NUM_STREAMS = "1"
QUEUE_CAPACITY = "8"
"""
DEVICES = ("CPU", "TEMPLATE", "APART", "FAULTY", "KEPT", "HETERO", "MULTI", "BATCH")


@dataclass(frozen=True)
class Busy:
    """The server under load.

    Attributes:
        http: the address that Prometheus scrapes.
        ca: its authority's certificate.
        token: a file with a token that may read.
        client: may do everything.
        crash: ends the process of the isolated device.
    """

    server: Server
    http: str
    ca: Path
    token: Path
    client: Client
    crash: Callable[[], None]


def magika() -> Case:
    """The demo's network, or a transformer where it was not fetched."""
    if not MAGIKA.exists():
        return networks.transformer()
    import onnx

    return Case("magika", onnx.load(MAGIKA), {"bytes": np.zeros((1, 2048), np.int32)})


@contextmanager
def busy(
    folder: Path, *options: str, devices: Sequence[str] = DEVICES, days: int = 30
) -> Iterator[Busy]:
    """Starts the server and its load; ends both.

    Args:
        days: how long its certificate is valid.
    """
    secrets, models, cache = (folder / each for each in ("secrets", "models", "cache"))
    for each in (secrets, models / "broken" / "1", cache):
        each.mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    _add_shadow(models / "judged")
    (cache / "taken").write_text("a file where a folder should be")
    write_certificates(secrets, ("localhost",), days)
    manager = add_token(secrets / "tokens.toml", "manager", ["manage"])
    token = secrets / "prometheus.token"
    token.write_text(add_token(secrets / "tokens.toml", "prometheus", ["read"]))
    file = folder / "headrace.toml"
    file.write_text(_CONFIGURATION)
    with ExitStack() as stack:
        started = Server(
            "--config",
            str(file),
            "--model-repository",
            stack.enter_context(web_server(models)),
            "--cache-dir",
            str(cache),
            "--devices",
            ",".join(devices),
            "--tls-cert",
            str(secrets / "server.crt"),
            "--tls-key",
            str(secrets / "server.key"),
            "--tokens",
            str(secrets / "tokens.toml"),
            *options,
            environment={"ORT_DISABLE_TELEMETRY": "1"},
        )
        server = stack.enter_context(started)
        target = server.address.replace("127.0.0.1", "localhost")
        http = server.http.replace("127.0.0.1", "localhost")
        ca = secrets / "ca.crt"
        client = stack.enter_context(Client(target, timeout=CALL_SECONDS, tls_ca=ca, token=manager))
        load = Load()
        _load(client, load)
        stranger = Client(target, timeout=CALL_SECONDS, tls_ca=ca, token="hr_wrong")
        load.add(stack.enter_context(stranger).devices, pause=0.2)
        _load_http(load, http, ca, manager)
        stack.callback(load.stop)
        load.start()
        yield Busy(server, http, ca, token, client, lambda: _crash(server))


class Load:
    """Calls without end, each on a thread of its own. Errors are part of it."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, call: Callable[[], object], pause: float = 0.02, threads: int = 1) -> None:
        """
        Args:
            pause: seconds between two calls, so that the machine is not kept busy.
        """

        def run() -> None:
            while not self._over.wait(pause):
                with suppress(Error, grpc.RpcError, OSError):
                    call()

        self._threads += [threading.Thread(target=run) for _ in range(threads)]

    def start(self) -> None:
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        self._over.set()
        for each in self._threads:
            each.join(CALL_SECONDS)


def _load(client: Client, load: Load) -> None:
    """Loads networks on all devices, and adds requests to them."""

    def network(case: Case, device: str, name: str, **options: Any) -> Any:
        return client.load_network(case.model, device=device, name=name, **options)

    real, mlp, image = magika(), networks.mlp(), networks.image()
    types = network(real, "CPU", real.name)
    load.add(lambda: types.infer(real.inputs))
    layers = network(mlp, "HETERO:TEMPLATE,CPU", "cut", affinities={"dense2": "CPU"})
    load.add(lambda: layers.infer(mlp.inputs))
    pictures = network(image, "BATCH:CPU(4)", "batched")
    load.add(lambda: pictures.infer(image.inputs), threads=4)
    anywhere = network(mlp, "MULTI:APART,CPU", "anywhere")
    load.add(lambda: anywhere.infer(mlp.inputs), threads=2)
    fragile = network(networks.fragile(), "CPU", "fragile")
    load.add(lambda: fragile.infer({"x": np.zeros(5, np.float32), "at": np.array([9])}))
    faulty = network(networks.add(), "FAULTY", "faulty")
    load.add(lambda: faulty.infer(networks.add().inputs), pause=0.5)
    # One request is always running, so others wait in a short queue, expire, or find no place.
    endless = network(networks.endless(), "TEMPLATE", "endless")
    load.add(lambda: endless.infer(networks.endless().inputs, timeout=0.3), threads=12)

    def cancel() -> None:
        started = endless.start_async(networks.endless().inputs)
        started.wait(0.1)
        started.cancel()

    load.add(cancel, threads=2)
    for name, folder in (("kept", "default"), ("found", "default"), ("unkept", "taken")):
        network(networks.add(), "KEPT", name, config={"CACHE_DIR": folder})
    judged = client.network("judged")
    load.add(lambda: judged.infer({"x": np.ones(2, np.float32)}))
    sums = network(Case("sum", SUM, {}), "CPU", "sum", config={"STATES": SUM_STATES})

    def in_sequence() -> None:
        with sums.session() as session:
            session.infer({"x": np.ones((1, 2), np.float32)})

    load.add(in_sequence)


def _add_shadow(folder: Path) -> None:
    """A network whose shadow is a version with other weights."""
    for version, weights in (("1", (1, 2)), ("2", (1, 2.5))):
        (folder / version).mkdir(parents=True)
        text = "m (float[2] x) => (float[2] y) { y = Add(x, w) }"
        model = parse(text, {"w": np.array(weights, np.float32)})
        (folder / version / "model.onnx").write_bytes(model.SerializeToString())
    shadow = "[shadow]\nversion = 2\npercent = 100\n"
    (folder / "network.toml").write_text(f"version_policy = 'all'\n[traffic]\n1 = 100\n{shadow}")


def _load_http(load: Load, http: str, ca: Path, token: str) -> None:
    """Adds requests over HTTP: good ones, one without a token, and one that a device's bug ends."""
    context = ssl.create_default_context(cafile=ca)
    tensors = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": list(array.shape),
            "data": array.ravel().tolist(),
        }
        for name, array in ((name, np.asarray(x)) for name, x in networks.add().inputs.items())
    ]

    def ask(path: str, body: object = None, bearer: str = token) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"https://{http}{path}", data, {"Authorization": f"Bearer {bearer}"}
        )
        with urllib.request.urlopen(request, timeout=CALL_SECONDS, context=context):
            pass

    load.add(lambda: ask("/readyz"), pause=0.2)
    load.add(lambda: ask("/v2/models/stats", bearer="hr_wrong"), pause=0.2)
    load.add(lambda: ask("/v2/models/faulty/infer", {"inputs": tensors}), pause=0.5)


def _crash(server: Server) -> None:
    """Kills the worker of the isolated device, as the system does where memory is short."""
    for each in psutil.Process(server.process.pid).children():
        with suppress(psutil.NoSuchProcess):
            os.kill(each.pid, 9)
