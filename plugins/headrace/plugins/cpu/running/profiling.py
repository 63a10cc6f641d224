"""Measures what each layer of one request costs.

ONNX Runtime times the layers of a whole session, and reports the times once, when the session ends.
Its binding has no option for a single run. So a profiled request runs in its own session. That
session is opened from a graph that the runtime has already rewritten, so it starts fast, and the
network's own session is never slowed. It costs 55 ms beside a run of 50 ms on a ResNet-50, and
0.5 ms on a network of one layer. Resolution: 1 µs.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import onnx
import onnx_ir as ir

from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.backend.fusion import trace
from headrace.plugins.cpu.backend.session import OnnxRuntimeSession, Provider, SessionSettings
from headrace.runtime.execution.job import LayerProfile
from headrace.runtime.intake.naming import walk
from headrace.runtime.intake.provenance import origins
from headrace.runtime.network.network import Network
from headrace.runtime.system.graph_memory import watched
from headrace.runtime.system.scratch import ScratchFolder

_log = logging.getLogger(__name__)

_EVENT_SUFFIX = "_kernel_time"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A node of the rewritten graph, and the layers of the transformed graph it stands for."""

    operator: str
    layer: str
    op_type: str
    origins: tuple[str, ...]


class Profiler:
    """Runs single requests of one network, and times their layers. Thread-safe: `_lock` guards the
    preparation, which the first profiled request does.

    Args:
        original: the network as transformed for the device.
        readable: makes the same network as the backend reads it.
        provider, threads: those of the network's own session.
    """

    def __init__(
        self,
        original: Network,
        readable: Callable[[], ir.Model],
        provider: Provider,
        threads: int,
    ) -> None:
        self._original = original
        self._readable = readable
        self._provider = provider
        self._threads = threads
        self._lock = threading.Lock()
        self._folder: ScratchFolder | None = None
        self._rewritten: Path | None = None
        self._kernels: dict[str, _Kernel] = {}
        self._count = 0

    def profile(
        self, run: Callable[[OnnxRuntimeSession], T], device: str
    ) -> tuple[T, list[LayerProfile]]:
        """Calls `run` with a session. Returns its result, and what each layer cost on `device`."""
        timed = self._open(self._prepare())
        try:
            result = run(timed)
        finally:
            file = timed.end_profiling()
            events = file.read_bytes()
            file.unlink()
        return result, self._layers(json.loads(events), device)

    def close(self) -> None:
        """Drops the network, and deletes the files on disk. No request may be running."""
        del self._original, self._readable
        if self._folder is not None:
            self._folder.close()

    def _prepare(self) -> str:
        """A path prefix for one request's profile."""
        with self._lock:
            if self._folder is None:
                self._folder = ScratchFolder()
                self._rewrite(self._folder.path / "model.onnx")
            self._count += 1
            return str(self._folder.path / f"request-{self._count}")

    def _open(self, prefix: str) -> OnnxRuntimeSession:
        if self._rewritten is None:
            settings = SessionSettings(threads=self._threads, profile_prefix=prefix)
            return session.open_model(self._readable(), self._provider, settings)
        settings = SessionSettings(threads=self._threads, optimize=False, profile_prefix=prefix)
        return session.open_file(self._rewritten, self._provider, settings)

    def _rewrite(self, path: Path) -> None:
        """Writes the graph as the runtime rewrites it, and gives each node a unique name."""
        settings = SessionSettings(threads=self._threads, optimized_path=path)
        try:
            session.open_model(self._readable(), self._provider, settings)
            proto = onnx.load(path, load_external_data=False)
            model = watched(ir.from_proto(proto))
            rewritten = model.graph
        except Exception as error:  # noqa: BLE001 - the runtime writes some graphs wrongly
            _log.info("cannot tell which layers were fused; each is timed by itself: %s", error)
            for node in walk(self._original.model.graph):
                self._kernels[node.name or ""] = _kernel(node, (node,))
            return
        traced = trace(self._original.model.graph, rewritten)
        for index, (node, named) in enumerate(
            zip(walk(rewritten), _walk(proto.graph), strict=True)
        ):
            named.name = f"kernel-{index}"
            self._kernels[named.name] = _kernel(node, traced.get(node, ()))
        path.write_bytes(proto.SerializeToString())
        self._rewritten = path

    def _layers(self, events: Iterable[Mapping[str, Any]], device: str) -> list[LayerProfile]:
        """One entry for each layer, in the order of the layers' first runs. The cost of a
        control-flow body counts for the layers in it, not for the layer that holds it."""
        profiles: dict[str, LayerProfile] = {}
        for event, microseconds in _exclusive(events):
            name = event["name"].removesuffix(_EVENT_SUFFIX)
            operator, provider = event["args"]["op_name"], event["args"]["provider"]
            kernel = self._kernels.get(name) or _Kernel(operator, name, operator, ())
            profile = profiles.get(kernel.layer) or LayerProfile(
                layer=kernel.layer,
                op_type=kernel.op_type,
                device=device if provider == self._provider.name else provider,
                execution_type=kernel.operator,
                seconds=0.0,
                origins=kernel.origins,
            )
            profiles[kernel.layer] = replace(profile, seconds=profile.seconds + microseconds / 1e6)
        return list(profiles.values())


def _kernel(node: ir.Node, layers: tuple[ir.Node, ...]) -> _Kernel:
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if not layers:
        return _Kernel(operator, node.name or operator, node.op_type, ())
    names = dict.fromkeys(name for layer in layers for name in origins(layer))
    return _Kernel(operator, layers[0].name or "", layers[0].op_type, tuple(names))


def _walk(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, followed by the nodes in its bodies: the order of `naming.walk`."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _walk(attribute.g)
            for body in attribute.graphs:
                yield from _walk(body)


def _exclusive(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Each layer's event with its microseconds, without those of the events inside it."""
    timed = sorted(
        (event for event in events if event.get("cat") == "Node"),
        key=lambda event: (event["ts"], -event["dur"]),
    )
    open_events: list[tuple[int, int]] = []  # end and index of events that still run
    inside = [0] * len(timed)
    for index, event in enumerate(timed):
        while open_events and open_events[-1][0] <= event["ts"]:
            open_events.pop()
        if open_events:
            inside[open_events[-1][1]] += event["dur"]
        open_events.append((event["ts"] + event["dur"], index))
    for event, covered in zip(timed, inside, strict=True):
        yield event, max(0, event["dur"] - covered)
