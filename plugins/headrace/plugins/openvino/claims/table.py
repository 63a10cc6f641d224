"""The list of claims, and how it is written: a line for each operator and the types that
are claimed alike.

    Clip | 11 12 13 | f16,f16,f16>f16 f32,f32,f32>f32 | 000 011 | - | 0 1 2 3 4

says in which operator sets it last changed, which types it has, which inputs may be constants,
which attributes were tried (a hyphen stands for none), and with how many axes. Sets and numbers of
axes between two that were right are listed, too, unless they were wrong. No integers beyond two to
the power of 24 were tried: `backend.integers` sees to it that there are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from headrace.plugins.openvino.claims.forms import LayerForm, covers

_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}


@dataclass(frozen=True, slots=True)
class Row:
    """What was proven of an operator on some types."""

    operator: str
    since: frozenset[int]
    types: str
    constants: frozenset[str]
    profiles: frozenset[str]
    ranks: frozenset[int]

    def __str__(self) -> str:
        fields = [
            self.operator,
            " ".join(map(str, sorted(self.since))),
            self.types,
            " ".join(sorted(self.constants)),
            " ".join(sorted(self.profiles)),
            " ".join(map(str, sorted(self.ranks))),
        ]
        return " | ".join(fields)


class Claims:
    """Answers whether a form is on a list.

    Args:
        text: the lines of the list.
    """

    def __init__(self, text: str) -> None:
        self.rows: Mapping[tuple[str, str], Row] = {
            (row.operator, row.types): row for row in _read(text)
        }
        self._operators = {operator for operator, _ in self.rows}

    def knows(self, operator: str) -> bool:
        """Whether the operator is claimed on some types."""
        return operator in self._operators

    def row(self, form: LayerForm) -> Row | None:
        """What is known about the operator and the types of the form."""
        return self.rows.get((form.operator, form.types))

    def why_not(self, form: LayerForm) -> str | None:
        """Why a form is not on the list. None if it is."""
        row = self.row(form)
        if row is None:
            types = "" if form.operator not in self._operators else f" on {_spelled(form.types)}"
            return f"{form.operator}{types} is not claimed"
        what = None
        if form.since not in row.since:
            what = f"of set {form.since}"
        elif form.profile not in row.profiles:
            what = f"with {'its defaults' if form.profile == '-' else form.profile}"
        elif form.rank not in row.ranks:
            what = f"of tensors of {form.rank} axes"
        elif not covers(row.constants, form.constants):
            places = [str(at) for at, constant in enumerate(form.constants) if constant == "1"]
            told = f"constants as inputs {', '.join(places)}" if places else "no constant inputs"
            what = f"with {told}"
        return None if what is None else f"{form.operator} {what} is not claimed"


def _spelled(types: str) -> str:
    inputs = types.partition(">")[0].split(",")
    return ", ".join(_NAMES.get(each, _integer(each)) for each in inputs)


def _integer(short: str) -> str:
    if short[:1] in ("i", "u") and short[1:].rstrip("*").isdigit():
        return ("int" if short[0] == "i" else "uint") + short[1:]
    return short


def _read(text: str) -> Iterator[Row]:
    for line in text.strip().splitlines():
        operator, since, types, constants, profiles, ranks = line.split(" | ")
        row = Row(
            operator,
            frozenset(map(int, since.split())),
            types,
            frozenset(constants.split()),
            frozenset(profiles.split()),
            frozenset(map(int, ranks.split())),
        )
        yield from (replace(row, types=each) for each in types.split())


def written(rows: Iterable[Row]) -> str:
    """The rows as lines, in order."""
    alike: defaultdict[Row, list[str]] = defaultdict(list)
    for row in rows:
        alike[replace(row, types="")].append(row.types)
    lines = (replace(row, types=" ".join(sorted(types))) for row, types in alike.items())
    return "\n".join(sorted(map(str, lines)))
