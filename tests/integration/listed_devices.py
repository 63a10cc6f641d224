"""What the tests of virtual devices share: servers with certain devices, and what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.parameters import decode_parameter
from tests.integration.harness import CALL_SECONDS, Server
from tests.support.crashing_device import HELD

FRAGILE = """
[plugins.FRAGILE]
factory = "tests.support.crashing_device:create_plugin"
[plugins.FRAGILE.config]
ISOLATION = "PROCESS"
"""
"""A device in a process of its own; `worker` is that."""


@contextmanager
def serving(folder: Path, config: str, devices: str) -> Iterator[Server]:
    """A server with these plugin tables and devices, which ends cleanly with the context."""
    file = folder / "headrace.toml"
    file.write_text(config, "utf-8")
    with Server("--config", str(file), "--devices", devices) as running:
        yield running
        assert running.stop() == 0, running.log()


def set_config(server: Server, changes: Mapping[str, str], **target: str) -> None:
    request = pb.SetConfigRequest(target=pb.Target(**target))
    for key, text in changes.items():
        request.config[key] = text
    server.stub.SetConfig(request, timeout=CALL_SECONDS)


def metric(server: Server, network: str, name: str) -> Any:
    request = pb.GetMetricRequest(target=pb.Target(network=network), name=name)
    return decode_parameter(server.stub.GetMetric(request, timeout=CALL_SECONDS).value)


def worker(server: Server) -> int:
    """The process that FRAGILE lives in."""
    return int(re.findall(r"lives in process (\d+)", server.log())[-1])


def held(file: Path) -> Case:
    """A network that keeps FRAGILE from coming back after a crash while there is such a file."""
    model = parse("held (float[n] x) => (float[n] y) { y = Relu(x) }")
    model.graph.node[0].name = f"{HELD}{file}"
    return Case("held", model, {})
