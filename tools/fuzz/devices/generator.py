"""Makes a variant from a seed and a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from headrace.testing.backend_cases.cases import BackendCase
from tools.fuzz.devices import mutations
from tools.fuzz.devices.mutations import Draft
from tools.fuzz.devices.sweep.ranks import FUSION
from tools.fuzz.devices.variant import Feed, Variant

_FEEDS = 5


class VariantGenerator:
    """Makes variants of ONNX's operator cases. The same seed and number make the same variant.

    Args:
        cases: what to mutate; those of models, and those with random numbers, are left out.
    """

    def __init__(self, cases: Sequence[BackendCase], seed: int) -> None:
        self.seed = seed
        self._groups: dict[str, list[BackendCase]] = {}
        for case in cases:
            if case.kind in ("node", FUSION) and not case.random:
                self._groups.setdefault(case.operator, []).append(case)
        self.operators = sorted(self._groups)
        kept = [case for operator in self.operators for case in self._groups[operator]]
        self._vocabulary = mutations.vocabulary(
            onnx.ModelProto.FromString(case.model) for case in kept
        )

    def variant(self, number: int) -> Variant:
        """Every operator has the same share of the numbers, however many cases it has."""
        rng = np.random.default_rng([self.seed, number])
        operator = self.operators[rng.integers(len(self.operators))]
        cases = self._groups[operator]
        # Half of the variants are of cases with a single node, which ONNX has fewer of.
        single = [case for case in cases if not case.name.endswith("_expanded")]
        if single and rng.integers(2):
            cases = single
        case = cases[rng.integers(len(cases))]
        draft = Draft(
            onnx.ModelProto.FromString(case.model), dict(case.data_sets[0][0]), self._vocabulary, []
        )
        _mutate_network(draft, rng)
        with_constants = rng.integers(3) == 0
        if with_constants and rng.integers(2):
            mutations.mutate_values(draft, rng)
        if with_constants:
            mutations.make_constants(draft, rng)
        free = mutations.declare(draft, rng)
        feeds = tuple(_feeds(draft, rng, free))
        model = draft.model.SerializeToString()
        name = f"{self.seed}:{number}"
        return Variant(name, case.name, operator, model, feeds, tuple(draft.done))


def _mutate_network(draft: Draft, rng: np.random.Generator) -> None:
    """What all requests share: attributes, types, which inputs there are, first sizes."""
    chances = (
        (mutations.drop_input, 0.05),
        (mutations.mutate_type, 0.2),
        (mutations.mutate_attribute, 0.25),
        (mutations.mutate_attribute, 0.08),
        (mutations.mutate_rank, 0.05),
        (mutations.mutate_sizes, 0.6),
        (mutations.mutate_sizes, 0.2),
    )
    for mutate, chance in chances:
        if rng.random() < chance:
            mutate(draft, rng)


def _feeds(draft: Draft, rng: np.random.Generator, free: bool) -> list[Feed]:
    first = dict(draft.feed)
    found: list[Feed] = [first]
    for _ in range(_FEEDS - 1 if first else 0):
        draft.feed = dict(first)
        if free and rng.random() < 0.6:
            mutations.mutate_sizes(draft, rng)
        if rng.random() < (0.5 if free else 1.0):
            mutations.mutate_values(draft, rng)
        found.append(draft.feed)
    return found
