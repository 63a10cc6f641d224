"""What is claimed after all trials: only what no wrong trial speaks against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from headrace.plugins.openvino.claims.table import Row
from tools.claims.trial import Trial, Verdict

_FLOAT_BITS: Final = 24
_FIELDS: Final = ("since", "constants", "profile", "rank")
_WRONG: Final = (Verdict.WRONG, Verdict.FAILED, Verdict.ENDED)


def rows(trials: Iterable[Trial]) -> list[Row]:
    """The list of claims that the trials prove."""
    groups: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.form is not None and not trial.excluded:
            groups[trial.form.operator, trial.form.types].append(trial)
    found = (row(operator, types, group) for (operator, types), group in groups.items())
    return [each for each in found if each is not None]


def row(operator: str, types: str, group: Sequence[Trial]) -> Row | None:
    """What is claimed of an operator on some types; None if that is nothing."""
    bits = _bits(group)
    fitting = [each for each in group if bits is None or each.magnitude <= 2**bits]
    right = [each for each in fitting if each.verdict is Verdict.RIGHT]
    wrong = [each for each in fitting if each.verdict in _WRONG]
    while wrong and right:
        right, wrong = _without_the_worst(right, wrong)
    if not right:
        return None
    since, constants, profiles, ranks = (
        frozenset(getattr(each.form, field) for each in right) for field in _FIELDS
    )
    return Row(operator, since, types, constants, profiles, ranks, bits)


def _bits(group: Sequence[Trial]) -> int | None:
    """The bits that the integers must fit into: trials that need more were wrong, or there were
    none. None if they may have any value of their type."""
    own = max(each.bits for each in group)
    bits = _FLOAT_BITS
    for more in (31, 63):
        if own <= bits + 1:
            return None
        wide = [each for each in group if 2**bits < each.magnitude <= 2**more]
        if not any(each.verdict is Verdict.RIGHT for each in wide):
            return bits
        if any(each.verdict in _WRONG for each in wide):
            return bits
        bits = more
    return None


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
