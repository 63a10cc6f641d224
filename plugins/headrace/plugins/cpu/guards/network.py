"""A network as the backend gets it, and what is known of it without its graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Self

import onnx_ir as ir

from headrace.plugins.cpu.backend import saturation
from headrace.runtime.network.data_oblivious import is_data_oblivious
from headrace.runtime.network.facts import PORTS, facts_from_json, facts_to_json
from headrace.runtime.network.network import (
    Layer,
    Network,
    Port,
    layer_from_json,
    layer_to_json,
)
from headrace.runtime.network.shapes.ledger import Ledger
from headrace.runtime.network.values import NUMPY_NUMBERS
from headrace.runtime.network.work import multiply_adds

_FACTS: Final = (
    "defaults",
    "inputs",
    "notes",
    "outputs",
    "random_layers",
    "size",
    "weight_bytes",
    "widened_bytes",
)


class GuardedNetwork(Network):
    """A network as the backend gets it.

    Attributes:
        is_oblivious: whether no value decides which memory a run touches.
        certain: the outputs of such a network that have the declared shape in every run.
        ledger: judges the shapes of requests; None if the network takes all that it declares.
    """

    is_oblivious: bool
    certain: Collection[str]
    ledger: Ledger | None

    def __init__(
        self,
        model: ir.Model,
        notes: tuple[str, ...],
        is_oblivious: bool,
        certain: Collection[str],
        ledger: Ledger | None,
    ) -> None:
        super().__init__(model, notes=notes)
        self.is_oblivious = is_oblivious
        self.certain = certain
        self.ledger = ledger

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        told: str | None = vars(self).get("_layers")
        if told is None:
            return super().layers
        return tuple(map(layer_from_json, json.loads(told)))

    @cached_property
    def work(self) -> int | None:
        """As `multiply_adds`."""
        return multiply_adds(self)

    @cached_property
    def keeps_int8(self) -> bool:
        """As `saturation.keeps_int8`."""
        return saturation.keeps_int8(self.model)

    @cached_property
    def replaceable(self) -> tuple[Port, ...]:
        """As `replaceable`."""
        return _replaceable(self)

    def to_json(self) -> dict[str, Any]:
        """All that the network must say without its graph.

        Raises:
            ValueError: its ledger cannot be written.
        """
        return {
            **facts_to_json(self, _FACTS),
            "certain": sorted(self.certain),
            "is_oblivious": self.is_oblivious,
            "keeps_int8": self.keeps_int8,
            # As a text, because few ask for the layers, and they are most of the entry.
            "layers": json.dumps([layer_to_json(layer) for layer in self.layers]),
            "ledger": None if self.ledger is None else self.ledger.to_json(),
            "replaceable": PORTS.to_json(self.replaceable),
            "work": self.work,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any], make: Callable[[], Network]) -> Self:
        """The network that `to_json` told of. Its graph is made when somebody asks for it.

        Args:
            make: makes the whole network.

        Raises:
            KeyError, TypeError, ValueError: `to_json` did not write this.
        """
        ledger = told["ledger"]
        facts = {
            **facts_from_json(told, _FACTS),
            "_layers": str(told["layers"]),
            "certain": tuple(map(str, told["certain"])),
            "is_oblivious": told["is_oblivious"] is True,
            "keeps_int8": told["keeps_int8"] is True,
            "ledger": None if ledger is None else Ledger.from_json(ledger),
            "replaceable": PORTS.from_json(told["replaceable"]),
            "work": None if told["work"] is None else int(told["work"]),
        }
        return cls.unread(make, facts)


def replaceable(network: Network) -> tuple[Port, ...]:
    """The inputs for which a request may give another value than the network's own, of the same
    shape. There are none if a value may decide which memory a run touches, because the layers were
    checked with the network's own."""
    return network.replaceable if isinstance(network, GuardedNetwork) else _replaceable(network)


def work_of(network: Network) -> int | None:
    """As `multiply_adds`."""
    return network.work if isinstance(network, GuardedNetwork) else multiply_adds(network)


def keeps_int8(network: Network) -> bool:
    """As `saturation.keeps_int8`."""
    if isinstance(network, GuardedNetwork):
        return network.keeps_int8
    return saturation.keeps_int8(network.model)


def _replaceable(network: Network) -> tuple[Port, ...]:
    if not network.defaults or not is_data_oblivious(network.model):
        return ()
    initializers = network.model.graph.initializers
    return tuple(
        replace(port, shape=tuple(int(size) for size in tensor.shape.numpy()))
        for port in network.defaults
        if port.dtype in NUMPY_NUMBERS
        and (tensor := initializers[port.name].const_value) is not None
    )
