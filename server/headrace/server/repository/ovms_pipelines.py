"""Pipelines of OpenVINO Model Server, as its ``config.json`` has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.runtime.errors import NotFound
from headrace.runtime.pipelines.description import (
    MAX_STEPS,
    PipelineDescription,
    read_pipeline,
)
from headrace.server.repository.ovms_values import (
    REFUSED,
    check_keys,
    list_at,
    text_at,
    whole_at,
    wrong,
)

_REQUEST: Final = "request"
"""The node that gives a pipeline's inputs."""
_OF_PIPELINE: Final = frozenset({"name", "inputs", "outputs", "nodes", "demultiply_count"})
_OF_NODE: Final = frozenset(
    {
        "name",
        "model_name",
        "version",
        "type",
        "inputs",
        "outputs",
        "demultiply_count",
        "gather_from_node",
    }
)


def ovms_pipeline(facts: dict[str, Any], where: str) -> PipelineDescription:
    """The pipeline that an entry describes, by way of the tables of a ``pipeline.toml``.

    A node that splits its outputs (`demultiply_count`) changes no tensor: the nodes behind it take
    rows, until one gathers. So a tensor has an axis for each node that split it, in their order.

    Args:
        where: the entry, for errors.

    Raises:
        InvalidArgument, NotFound: a value is wrong, or a key has no meaning here.
    """
    check_keys(facts, _OF_PIPELINE, where)
    nodes: dict[str, Mapping[str, Any]] = {}
    if len(list_at(facts, "nodes", where)) > MAX_STEPS:
        raise wrong(f"has more than {MAX_STEPS} nodes", where)
    for each in list_at(facts, "nodes", where):
        check_keys(each, _OF_NODE, where)
        name = text_at(each, "name", where)
        if each.get("type", "DL model") != "DL model":
            raise wrong(f"node {name!r} is a custom node: {REFUSED['params']}", where)
        if name in nodes or name == _REQUEST:
            raise wrong(f"there are two nodes {name!r}", where)
        nodes[name] = each
    inputs = facts.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(each, str) for each in inputs):
        raise wrong("inputs must be a list of names", where)
    splits = _Splits(facts, nodes, where)
    steps = []
    for name, node in nodes.items():
        place = f"{where}: node {name!r}"
        splits.made(name)
        takes = dict(_sources(node, "inputs", place))
        version = f":{node['version']}" if whole_at(node, "version", 0, place) else ""
        each = {
            _tensor(source): sizes
            for source in takes.values()
            if (sizes := [splits.counts[maker] for maker in splits.taken(node, source, place)])
        }
        steps.append(
            {
                "name": name,
                "network": text_at(node, "model_name", place) + version,
                "inputs": {key: _tensor(source) for key, source in takes.items()},
                "outputs": {_tensor((name, alias)): item for alias, item in _aliases(node, place)},
                "each": each,
            }
        )
    outputs = {label: _tensor(source) for label, source in _sources(facts, "outputs", where)}
    tables = {"step": steps, "outputs": outputs, "inputs": inputs}
    return read_pipeline(tables, where)


def _tensor(source: tuple[str, str]) -> str:
    """The name of the tensor that a node gives as this item."""
    node, item = source
    return item if node == _REQUEST else f"{node}/{item}"


class _Splits:
    """Which nodes have split a tensor.

    Attributes:
        counts: in how many parts each node splits; -1 for any number.
    """

    def __init__(
        self, pipeline: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], where: str
    ) -> None:
        self._nodes = nodes
        self._where = where
        self._known: dict[str, tuple[str, ...] | None] = {}
        self.counts = {
            name: count or -1
            for name, node in ((_REQUEST, pipeline), *nodes.items())
            if (count := whole_at(node, "demultiply_count", None, where, least=-1)) is not None
        }

    def taken(
        self, node: Mapping[str, Any], source: tuple[str, str], where: str
    ) -> tuple[str, ...]:
        """The nodes along whose axes a node takes the tensor apart. It gathers those of one."""
        made = self.made(source[0])
        gathers = node.get("gather_from_node", "")
        if not gathers or gathers not in made:
            return made
        if made[-1] != gathers:
            message = f"gathers {gathers!r} before {made[-1]!r}, which has split the rows again"
            raise wrong(message, where)
        return made[:-1]

    def made(self, name: str) -> tuple[str, ...]:
        """The nodes that have split what a node makes.

        Raises:
            NotFound: there is no such node.
            InvalidArgument: nodes wait for each other, or rows do not fit together.
        """
        if name == _REQUEST:
            return self._own(name)
        if name not in self._nodes:
            raise NotFound.unknown("node", name[:200], self._nodes, field=self._where)
        if name in self._known:
            known = self._known[name]
            if known is None:
                raise wrong(f"the nodes wait for each other: {name!r} for itself", self._where)
            return known
        self._known[name] = None
        node, where = self._nodes[name], f"{self._where}: node {name!r}"
        sources = [source for _, source in _sources(node, "inputs", where)]
        longest: tuple[str, ...] = ()
        for source in sources:
            taken = self.taken(node, source, where)
            shorter, longest = sorted((longest, taken), key=len)
            if longest[: len(shorter)] != shorter:
                raise wrong("takes rows that different nodes have split", where)
        gathers = node.get("gather_from_node", "")
        if gathers and not any(gathers in self.made(source[0]) for source in sources):
            raise wrong(f"gathers from {gathers!r}, which has split none of its inputs", where)
        made = self._known[name] = longest + self._own(name)
        return made

    def _own(self, name: str) -> tuple[str, ...]:
        return (name,) if name in self.counts else ()


def _sources(
    facts: Mapping[str, Any], key: str, where: str
) -> Iterator[tuple[str, tuple[str, str]]]:
    """The name of each input, or of each output, and the node and the item that it comes from."""
    for each in list_at(facts, key, where):
        if not isinstance(each, dict) or len(each) != 1:
            raise wrong(f'{key} must be a list of {{"name": {{"node_name", "data_item"}}}}', where)
        ((name, source),) = each.items()
        check_keys(source, frozenset({"node_name", "data_item"}), f"{where}: {key}")
        yield name, (text_at(source, "node_name", where), text_at(source, "data_item", where))


def _aliases(node: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    """The name of each output for other nodes, and the network's."""
    for each in list_at(node, "outputs", where):
        check_keys(each, frozenset({"data_item", "alias"}), f"{where}: outputs")
        item = text_at(each, "data_item", where)
        yield (text_at(each, "alias", where) if "alias" in each else item), item
