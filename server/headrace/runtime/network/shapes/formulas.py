"""Sizes as formulas over the sizes of a network's inputs.

A formula is made once for a network. Its number for a request takes a fraction of a microsecond, so
that shapes that never come again cost little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from types import MappingProxyType
from typing import Any, Final, TypeAlias

LARGEST: Final = 2**62
"""No size, and no number that a network computes from sizes, may be larger: 64 bits hold less."""

_MOST_TERMS: Final = 100_000
"""The most terms of a network. Sizes that need more are not known."""


class Misfit(Exception):
    """Sizes that no run of a layer takes."""


@dataclass(slots=True, eq=False, repr=False)
class Term:
    """A function of other sizes, or one size of an input. Two terms of one `Formulas` are the same
    object if they are made alike. Then they have the same number in every request.

    Attributes:
        number: its place among the terms that were made. Arguments were made before.
        source: the input and its axis, if the term is one size of an input.
    """

    number: int
    function: Callable[..., int] | None
    arguments: tuple[Size, ...] = ()
    source: tuple[str, int] | None = None
    layer: str = ""


Size: TypeAlias = int | Term
Unsure: TypeAlias = int | Term | None
"""A size, or None for one that does not follow from the shapes of inputs."""


class Formulas:
    """Makes the terms of one network.

    Attributes:
        layer: the layer that the next terms are made for.
    """

    def __init__(self) -> None:
        self.layer = ""
        self._made: dict[tuple[object, ...], Term] = {}

    def size_of_input(self, name: str, axis: int) -> Term:
        term = Term(len(self._made), None, source=(name, axis))
        return self._made.setdefault((name, axis), term)

    def apply(self, function: Callable[..., int], *arguments: Unsure) -> Unsure:
        """The function of the arguments. None if one is not known, or if no run takes them."""
        known = tuple(argument for argument in arguments if argument is not None)
        if len(known) < len(arguments):
            return None
        if all(type(size) is int for size in known):
            try:
                result = function(*known)
            except Misfit:
                return None
            return result if -LARGEST < result < LARGEST else None
        key = (function, *known)
        term = self._made.get(key)
        if term is None:
            if len(self._made) >= _MOST_TERMS:
                return None
            term = Term(len(self._made), function, known, layer=self.layer)
            self._made[key] = term
        return term

    def plus(self, one: Unsure, other: Unsure) -> Unsure:
        if other == 0:
            return one
        return other if one == 0 else self.apply(_plus, one, other)

    def times(self, one: Unsure, other: Unsure) -> Unsure:
        if other == 1:
            return one
        return other if one == 1 else self.apply(_times, one, other)

    def product(self, sizes: Iterable[Unsure]) -> Unsure:
        product: Unsure = 1
        for size in sizes:
            product = self.times(product, size)
        return product

    def broadcast(self, one: Unsure, other: Unsure) -> Unsure:
        """The size of an axis of an elementwise operation, whose operands have these sizes."""
        if one is other or other == 1:
            return one
        if one == 1:
            return other
        for size in (one, other):
            if isinstance(size, int):
                return size  # a run in which the other is neither 1 nor this one fails
        return self.apply(_broadcast, one, other)

    def windows(self, size: Unsure, reach: Unsure, stride: int) -> Unsure:
        """How many windows fit into an axis. A window reaches over as many elements more than there
        is padding. ONNX Runtime rounds a negative number of steps towards 0."""
        return size if reach == 1 == stride else self.apply(_windows, size, reach, stride)

    def share(self, sizes: Sequence[Unsure], others: Sequence[Unsure]) -> Unsure:
        """The product of sizes, divided by the product of others."""
        sizes, others = list(sizes), list(others)
        for factor in [*others]:
            if factor in sizes:
                sizes.remove(factor)
                others.remove(factor)
        divisor = self.product(others)
        whole = self.product(sizes)
        return whole if divisor == 1 else self.apply(_share, whole, divisor)


def number_of(size: Size, numbers: Mapping[Term, int]) -> int:
    return size if isinstance(size, int) else numbers[size]


class Program:
    """Computes the numbers of some terms, and of those that they are made of.

    Attributes:
        inputs: the names of the inputs whose shapes count.
    """

    def __init__(self, terms: Iterable[Size]) -> None:
        found: dict[int, Term] = {}
        waiting = [each for each in terms if isinstance(each, Term)]
        while waiting:
            term = waiting.pop()
            if term.number not in found:
                found[term.number] = term
                waiting += [argument for argument in term.arguments if isinstance(argument, Term)]
        self._steps = [found[number] for number in sorted(found)]
        sources = (step.source for step in self._steps if step.source is not None)
        self.inputs = tuple(dict.fromkeys(name for name, _ in sources))

    @property
    def places(self) -> Mapping[Term, int]:
        """The place of each term in `to_json`."""
        return {step: at for at, step in enumerate(self._steps)}

    def to_json(self) -> list[list[Any]]:
        """The terms in their order, as data.

        Raises:
            ValueError: one has a function that is not in `FUNCTIONS`.
        """
        places = self.places
        return [_term_to_json(step, places) for step in self._steps]

    def __call__(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[Term, int]:
        """The number of each term.

        Raises:
            Misfit: no run takes these shapes. Its text begins with the layer's name.
        """
        found: dict[Term, int] = {}
        for term in self._steps:
            if term.source is not None:
                name, axis = term.source
                found[term] = shapes[name][axis]
                continue
            assert term.function is not None
            try:
                made = term.function(*[number_of(argument, found) for argument in term.arguments])
            except Misfit as error:
                raise Misfit(f"layer {term.layer!r}: {error}") from None
            if not -LARGEST < made < LARGEST:
                raise Misfit(f"layer {term.layer!r}: a size is too large")
            found[term] = made
        return found


def _plus(one: int, other: int) -> int:
    return one + other


def _times(one: int, other: int) -> int:
    return one * other


def minus(one: int, other: int) -> int:
    return one - other


def quotient(one: int, other: int) -> int:
    """Rounded towards 0, as integers are divided in a network."""
    if not other:
        raise Misfit("a number is divided by 0")
    magnitude = abs(one) // abs(other)
    return magnitude if (one < 0) == (other < 0) else -magnitude


def divided_up(one: int, other: int) -> int:
    """Rounded up."""
    if not other:
        raise Misfit("a number is divided by 0")
    return -(-one // other)


def extent(size: int, start: int, end: int, step: int) -> int:
    """The length of a slice."""
    if not step:
        raise Misfit("a step is 0")
    return len(range(*slice(start, end, step).indices(size)))


def steps(start: int, limit: int, delta: int) -> int:
    """The length of a Range."""
    if not delta:
        raise Misfit("delta is 0")
    return max(0, -((start - limit) // delta))


def copied_if_0(size: int, given: int) -> int:
    """A size of a Reshape, which is that of the input if it is 0."""
    return given if size == 0 else not_negative(size)


def not_negative(size: int) -> int:
    if size < 0:
        raise Misfit("a size is negative")
    return size


def scaled(size: int, scale: int) -> int:
    """A size that is multiplied as a number of 32 bits."""
    if size * scale >= 2**24:
        raise Misfit("a size is too large")
    return size * scale


def positive(size: int) -> int:
    if size <= 0:
        raise Misfit("a size is not positive")
    return size


def _broadcast(one: int, other: int) -> int:
    if one != other and 1 not in (one, other):
        raise Misfit("the shapes of the inputs do not fit each other")
    return other if one == 1 else one


def _windows(size: int, reach: int, stride: int) -> int:
    count = quotient(size - reach, stride) + 1
    if count < 0:
        raise Misfit("the window is larger than the padded input")
    return count


def _share(whole: int, divisor: int) -> int:
    if not divisor or whole % divisor:
        raise Misfit("the number of elements does not fit the new shape")
    return whole // divisor


FUNCTIONS: Final[Mapping[str, Callable[..., int]]] = MappingProxyType(
    {
        "broadcast": _broadcast,
        "copied_if_0": copied_if_0,
        "divided_up": divided_up,
        "extent": extent,
        "minus": minus,
        "not_negative": not_negative,
        "plus": _plus,
        "positive": positive,
        "quotient": quotient,
        "scaled": scaled,
        "share": _share,
        "steps": steps,
        "times": _times,
        "windows": _windows,
    }
)
"""All functions of terms, by the name that they have in data."""
_NAMES: Final = {function: name for name, function in FUNCTIONS.items()}
_ARITIES: Final = {name: len(signature(each).parameters) for name, each in FUNCTIONS.items()}


def size_to_json(size: Size, places: Mapping[Term, int]) -> Any:
    """A number, or the place of a term in a list with one element."""
    return size if isinstance(size, int) else [places[size]]


def size_from_json(told: Any, terms: Sequence[Term]) -> Size:
    """
    Args:
        terms: those that the size may name.

    Raises:
        ValueError: it is no size, or names another term.
    """
    if type(told) is int and -LARGEST < told < LARGEST:
        return told
    if isinstance(told, list) and len(told) == 1 and type(told[0]) is int:
        if 0 <= told[0] < len(terms):
            return terms[told[0]]
        raise ValueError("a size names a term that is not there")
    raise ValueError("a size is neither a number nor a term")


def terms_from_json(told: Any) -> list[Term]:
    """The terms that `Program.to_json` wrote.

    Raises:
        ValueError: there is anything that it does not write.
    """
    if not isinstance(told, list) or len(told) > _MOST_TERMS:
        raise ValueError("no list of terms")
    terms: list[Term] = []
    for each in told:
        match each:
            case [str() as name, int() as axis] if axis >= 0:
                term = Term(len(terms), None, source=(name, axis))
            case [str() as function, str() as layer, list() as arguments]:
                if _ARITIES.get(function) != len(arguments):
                    raise ValueError(f"no function {function!r} of {len(arguments)} sizes")
                sizes = tuple(size_from_json(size, terms) for size in arguments)
                term = Term(len(terms), FUNCTIONS[function], sizes, layer=layer)
            case _:
                raise ValueError("no term")
        terms.append(term)
    return terms


def _term_to_json(term: Term, places: Mapping[Term, int]) -> list[Any]:
    if term.source is not None:
        return [*term.source]
    if term.function not in _NAMES:
        raise ValueError(f"{term.function} has no name")
    return [
        _NAMES[term.function],
        term.layer,
        [size_to_json(size, places) for size in term.arguments],
    ]
