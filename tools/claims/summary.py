"""What is claimed after all trials: only what no wrong trial speaks against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import onnx

from headrace.plugins.openvino.claims.forms import schema_of
from headrace.plugins.openvino.claims.table import Row
from tools.claims.trial import Trial, Verdict

_FIELDS: Final = ("since", "constants", "profile", "rank")
_WRONG: Final = (Verdict.WRONG, Verdict.FAILED, Verdict.ENDED)


def rows(trials: Iterable[Trial]) -> list[Row]:
    """The list of claims that the trials prove."""
    groups: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.form is not None:
            groups[trial.form.operator, trial.form.types].append(trial)
    found = (row(operator, types, group) for (operator, types), group in groups.items())
    return [each for each in found if each is not None]


def row(operator: str, types: str, group: Sequence[Trial]) -> Row | None:
    """What is claimed of an operator on some types; None if that is nothing."""
    right = [each for each in group if each.verdict is Verdict.RIGHT]
    wrong = [each for each in group if each.verdict in _WRONG]
    sets, axes = ({getattr(each.form, field) for each in wrong} for field in ("since", "rank"))
    while wrong and right:
        right, wrong = _without_the_worst(right, wrong)
    if not right:
        return None
    since, constants, profiles, ranks = (
        frozenset(getattr(each.form, field) for each in right) for field in _FIELDS
    )
    since = filled(since, sets, sets_of(operator))
    ranks = filled(ranks, axes, range(max(ranks)))
    return Row(operator, since, types, constants, profiles, ranks)


def filled(right: frozenset[int], wrong: Collection[int], among: Iterable[int]) -> frozenset[int]:
    """With what lies between two that were right, and was not wrong."""
    between = (each for each in among if min(right) < each < max(right))
    return right | {each for each in between if each not in wrong}


def sets_of(operator: str) -> list[int]:
    """The operator sets in which ONNX has changed the operator."""
    domain, _, name = operator.rpartition(".")
    found = (
        schema_of(domain, name, version) for version in range(1, onnx.defs.onnx_opset_version() + 1)
    )
    return sorted({each.since_version for each in found if each is not None})


def _without_the_worst(
    right: Sequence[Trial], wrong: Sequence[Trial]
) -> tuple[list[Trial], list[Trial]]:
    """Without the trials that have one set, profile, rank or choice of constants: the one that
    takes the most wrong trials away for each right one that is lost."""

    def worth(choice: tuple[str, object]) -> tuple[float, int, str]:
        field, value = choice
        lost = sum(getattr(each.form, field) == value for each in right)
        gone = sum(getattr(each.form, field) == value for each in wrong)
        return gone / (lost + 0.5), gone, str(choice)

    choices = {(field, getattr(each.form, field)) for each in wrong for field in _FIELDS}
    field, value = max(choices, key=worth)
    return (
        [each for each in right if getattr(each.form, field) != value],
        [each for each in wrong if getattr(each.form, field) != value],
    )
