"""The boxes and lines in the picture of a query, independent of the file format.

A small network has a box for each layer and a group around each subgraph. A large one has a box for
each subgraph, which lists its most frequent operators, so that the cut stays readable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from headrace.client.cli.texts import bytes_text, counted, type_text, visible
from headrace.client.info import Graph, Port, QueryResult, UnsupportedLayer, size_bytes

MAX_LAYERS: Final = 60
"""Networks with more layers are drawn as a box for each subgraph unless asked otherwise."""
MAX_UNSUPPORTED: Final = 20
"""At most this many unsupported layers have boxes of their own between the boxes of subgraphs."""
MAX_PORTS: Final = 8
"""If there are more inputs or outputs than this, they share one box between those of subgraphs."""

_STEPS: Final = "headrace.pipeline"
"""The domain of the layers of a pipeline, which are its steps."""
_NAME = 40
_LINE = 500
_OPS = 5
_TENSORS = 3
_TOOLTIP_LINES = 20

Kind: TypeAlias = Literal["layer", "subgraph", "unsupported", "input", "output"]


@dataclass(frozen=True, slots=True)
class Box:
    """One thing that lines lead to and from.

    Attributes:
        key: unique in the picture; letters and digits alone.
        device: the device that decides its colour; empty for none.
    """

    key: str
    kind: Kind
    lines: tuple[str, ...]
    tooltip: tuple[str, ...]
    device: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The layers of one subgraph; `number` is its place in execution order, from 1."""

    number: int
    device: str
    heading: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """The tensors from one box to another; `is_cut` if they go from subgraph to subgraph."""

    source: str
    target: str
    lines: tuple[str, ...]
    tooltip: tuple[str, ...]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """Groups and boxes are in execution order; `devices` are in the legend's order. `part` is what
    a group is called: a subgraph, or the step of a pipeline."""

    title: str
    summary: str
    devices: tuple[str, ...]
    groups: tuple[Group, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    unsupported: tuple[UnsupportedLayer, ...]
    part: Literal["subgraph", "step"] = "subgraph"


def picture(query: QueryResult, graph: Graph, title: str, *, full: bool = False) -> Picture:
    """The picture of a query's answer.

    Args:
        full: a box for each layer, however many there are.
    """
    scene = _Scene(query, graph, collapsed=not full and len(graph.layers) > MAX_LAYERS)
    summary = [counted(len(graph.layers), "step" if scene.has_steps else "layer")]
    if not scene.has_steps:
        summary.insert(0, counted(len(scene.parts), "subgraph"))
    if scene.reasons:
        summary.append(f"{len(scene.reasons):,} unsupported")
    devices = dict.fromkeys([part.device for part in scene.parts])
    devices |= dict.fromkeys(query.supported_layers.values())
    return Picture(
        title=title,
        summary=", ".join(summary),
        devices=tuple(device for device in devices if device),
        groups=tuple(scene.groups),
        boxes=tuple(scene.boxes),
        lines=tuple(scene.lines()),
        unsupported=tuple(query.unsupported),
        part="step" if scene.has_steps else "subgraph",
    )


@dataclass(frozen=True, slots=True)
class _Part:
    number: int
    device: str
    layers: list[int]  # positions in the graph


class _Scene:
    """The boxes that are placed so far, and where each tensor comes from and goes to."""

    def __init__(self, query: QueryResult, graph: Graph, *, collapsed: bool) -> None:
        self._graph = graph
        self._collapsed = collapsed
        self._devices = query.supported_layers
        self.has_steps = bool(graph.layers) and all(
            layer.domain == _STEPS for layer in graph.layers
        )
        self.reasons: dict[str, list[str]] = {}
        for layer in query.unsupported:
            self.reasons.setdefault(layer.layer, []).append(layer.reason)
        self.parts = list(_parts(query, graph))
        self.groups: list[Group] = []
        self.boxes: list[Box] = []
        self._home: dict[int, str] = {}  # layer to the key of its box
        self._part = {layer: part.number for part in self.parts for layer in part.layers}
        self._inputs = self._place_ports(graph.inputs, "input")
        for part in self.parts:
            self._place_part(part)
        self._place_others([i for i in range(len(graph.layers)) if i not in self._part])
        self._outputs = self._place_ports(graph.outputs, "output")

    # -- boxes --

    def _place_part(self, part: _Part) -> None:
        heading = f"subgraph {part.number} · {part.device} · {counted(len(part.layers), 'layer')}"
        if self.has_steps:
            heading = f"step {part.number} · {part.device}"
        if self._collapsed:
            key = f"subgraph{part.number}"
            name = f"subgraph {part.number} · {visible(part.device, _NAME)}"
            lines = (name, *self._histogram(part.layers, _OPS))
            tooltip = (heading, *self._histogram(part.layers, _TOOLTIP_LINES))
            self.boxes.append(Box(key, "subgraph", lines, tooltip, part.device))
            self._home.update(dict.fromkeys(part.layers, key))
        else:
            boxes = tuple(map(self._layer, part.layers))
            self.groups.append(Group(part.number, part.device, heading, boxes))

    def _place_others(self, layers: list[int]) -> None:
        """Places the layers in no subgraph, most of all those that no device runs."""
        shown = layers[:MAX_UNSUPPORTED] if self._collapsed else layers
        self.boxes += map(self._layer, shown)
        rest = layers[len(shown) :]
        if rest:
            lines = (f"{len(rest):,} more", *self._histogram(rest, _OPS))
            tooltip = self._histogram(rest, _TOOLTIP_LINES)
            self.boxes.append(Box("unsupported", "unsupported", lines, tooltip))
            self._home.update(dict.fromkeys(rest, "unsupported"))

    def _layer(self, position: int) -> Box:
        layer = self._graph.layers[position]
        key = self._home[position] = f"layer{position}"
        operator = f"{layer.domain}::{layer.op_type}" if layer.domain else layer.op_type
        if self.has_steps:
            operator = f"runs {layer.op_type}"
        lines = (visible(layer.name, _NAME), visible(operator, _NAME))
        reasons = self.reasons.get(layer.name)
        device = self._devices.get(layer.name, "")
        about = [layer.name, f"{operator} on {device}" if device else operator]
        return Box(
            key,
            "unsupported" if reasons else "layer",
            lines,
            tuple(visible(line, _LINE) for line in (*about, *(reasons or ()))),
            device,
        )

    def _histogram(self, layers: Sequence[int], limit: int) -> tuple[str, ...]:
        """The number of layers, and how many of each operator, the most frequent first."""
        counts = Counter(self._graph.layers[position].op_type for position in layers)
        lines = [f"{count:,} {visible(op, _NAME)}" for op, count in counts.most_common(limit)]
        if len(counts) > limit:
            lines.append(counted(len(counts) - limit, "other operator"))
        return (counted(len(layers), "layer"), *lines)

    def _place_ports(self, ports: Sequence[Port], kind: Literal["input", "output"]) -> list[str]:
        """The key of each port's box."""
        if self._collapsed and len(ports) > MAX_PORTS:
            tooltip = tuple(_texts(ports, _TOOLTIP_LINES))
            self.boxes.append(Box(f"{kind}s", kind, (counted(len(ports), kind),), tooltip))
            return [f"{kind}s"] * len(ports)
        for number, port in enumerate(ports):
            lines = (visible(port.name, _NAME), visible(type_text(port), _NAME))
            self.boxes.append(Box(f"{kind}{number}", kind, lines, tuple(_texts([port], 1))))
        return [f"{kind}{number}" for number in range(len(ports))]

    # -- lines --

    def lines(self) -> Iterator[Line]:
        """A line for each two boxes between which tensors flow."""
        ports = {port.name: port for port in (*self._graph.inputs, *self._graph.tensors)}
        told: set[tuple[str, int | None]] = set()
        for (source, target), flow in self._flows().items():
            tensors = [ports.get(name) or Port(name, "unknown", None) for name in flow.tensors]
            between_layers = not source.startswith("input") and not target.startswith("output")
            shown = tensors if flow.is_cut or (self._collapsed and between_layers) else []
            if not self._collapsed:  # once for all layers that take a tensor in another subgraph
                shown = [port for port in shown if (port.name, flow.into) not in told]
                told.update((port.name, flow.into) for port in shown)
            yield Line(
                source,
                target,
                tuple(_labels(shown)),
                tuple(_texts(tensors, _TOOLTIP_LINES)),
                flow.is_cut,
            )

    def _flows(self) -> dict[tuple[str, str], _Flow]:
        flows: dict[tuple[str, str], _Flow] = {}

        def flow(tensor: str, target: str, into: int | None) -> None:
            if tensor not in sources:
                return  # an initialiser
            source, out_of = sources[tensor]
            if source != target:
                is_cut = None not in (out_of, into) and out_of != into
                each = flows.setdefault((source, target), _Flow({}, into, is_cut))
                each.tensors[tensor] = None

        sources: dict[str, tuple[str, int | None]] = {}
        for port, key in zip(self._graph.inputs, self._inputs, strict=True):
            sources[port.name] = (key, None)
        for position, layer in enumerate(self._graph.layers):
            for name in layer.outputs:
                sources[name] = (self._home[position], self._part.get(position))
        for position, layer in enumerate(self._graph.layers):
            for name in layer.inputs:
                flow(name, self._home[position], self._part.get(position))
        for port, key in zip(self._graph.outputs, self._outputs, strict=True):
            flow(port.name, key, None)
        return flows


@dataclass(frozen=True, slots=True)
class _Flow:
    tensors: dict[str, None]  # names, in order
    into: int | None
    is_cut: bool


def _parts(query: QueryResult, graph: Graph) -> Iterator[_Part]:
    """The subgraphs; if there are none, the layers of each device."""
    positions = {layer.name: position for position, layer in enumerate(graph.layers)}
    if query.subgraphs:
        for number, part in enumerate(query.subgraphs, 1):
            found = [positions.pop(name) for name in part.layers if name in positions]
            if found:
                yield _Part(number, part.device, sorted(found))
        return
    by_device: dict[str, list[int]] = {}
    for name, position in positions.items():
        if name in query.supported_layers:
            by_device.setdefault(query.supported_layers[name], []).append(position)
    for number, (device, layers) in enumerate(by_device.items(), 1):
        yield _Part(number, device, layers)


def _labels(ports: Sequence[Port]) -> Iterator[str]:
    """Two lines for each of the first few tensors, and one for the others."""
    for port in ports[:_TENSORS]:
        yield visible(port.name, _NAME)
        yield f"{visible(type_text(port), _NAME)} · {bytes_text(size_bytes(port))}"
    if len(ports) > _TENSORS:
        sizes = [size_bytes(port) for port in ports]
        known = [size for size in sizes if size is not None]
        total = sum(known) if len(known) == len(sizes) else None
        yield f"{len(ports) - _TENSORS:,} more · {bytes_text(total)} in all"


def _texts(ports: Iterable[Port], limit: int) -> Iterator[str]:
    for number, port in enumerate(ports):
        if number == limit:
            yield "…"
            return
        size = bytes_text(size_bytes(port))
        yield f"{visible(port.name, _LINE)} {visible(type_text(port), _LINE)} · {size}"
