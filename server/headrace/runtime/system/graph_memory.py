"""Frees the memory of graphs that are no longer referred to.

A graph's nodes and values refer to each other, so without this module only Python's garbage
collector would free them. The collector looks at all objects in one go and stops every thread
meanwhile, which takes 0.1 s and more for a network of a thousand layers. So this module watches
models. When a model is gone, it looks only at the model's graphs, a few objects at a time. It works
like the collector:

1. Find every object that the graph reaches, and count the references among these objects.
2. Compare the counts with Python's own, which are read for all objects at one moment. If an
   object's counts differ, something outside refers to it: it stays, with all that it reaches.
3. Empty the other objects. They then refer to nothing, and are freed one after the other.

So a graph needs no owner. A reference to any part of a graph keeps the whole graph, which is then
left to Python's collector.
"""

from __future__ import annotations

import enum
import gc
import sys
import threading
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Final, cast

import onnx_ir as ir

_AT_ONCE: Final = 1000
"""How many objects are looked at or freed in one go, while other threads wait."""

_LARGE: Final = 20_000
"""Python's collector looks twice at every element of a new container. So before one grows larger
than this, the new objects are looked at, so that it is no longer new."""

_PLAIN: Final = (int, float, str, bytes)

_OF_GRAPHS: Final = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)

_LEAVES: Final = (
    enum.Enum,
    type(ir.Value().meta),
    ir.Shape,
    ir.SymbolicDim,
    ir.Tensor,
    ir.ExternalTensor,
    ir.PackedTensor,
    ir.StringTensor,
    ir.TensorProtoTensor,
    ir.TensorType,
    ir.SparseTensorType,
    ir.SequenceType,
    ir.OptionalType,
)

(_OWN,) = map(sys.getrefcount, [object()])
"""The `sys.getrefcount` of an object that only a list refers to."""

_left: weakref.WeakSet[ir.Graph | ir.Function] = weakref.WeakSet()
"""The graphs and functions of models that are gone."""

_removed: deque[list[ir.Node]] = deque()
"""The nodes that were removed from models that are gone. They refer to each other, too."""

_one_at_a_time = threading.Lock()


def watched(model: ir.Model) -> ir.Model:
    """Watches `model` and returns it. When nothing refers to the model any more, the next
    `free_graphs` looks at its graphs."""
    weakref.finalize(model, _leave, weakref.ref(model.graph), model.functions).atexit = False
    return model


def watch_removed(model: ir.Model, nodes: Iterable[ir.Node]) -> None:
    """When nothing refers to `model` any more, the next `free_graphs` looks at these nodes, too,
    which a transformation has removed from its graph."""
    weakref.finalize(model, _removed.append, list(nodes)).atexit = False


def _leave(
    graph: weakref.ref[ir.Graph], functions: Mapping[ir.OperatorIdentifier, ir.Function]
) -> None:
    _left.update(part for part in (graph(), *functions.values()) if part is not None)


def free_graphs(*, wait: bool = True) -> None:
    """Frees the graphs of watched models that are gone, unless something refers to a part.

    Args:
        wait: whether to wait if another thread frees graphs. That thread then frees these too.
    """
    while _left or _removed:
        # Two threads that look at one graph would see each other's references.
        if not _one_at_a_time.acquire(blocking=wait):
            return  # the other thread looks again for graphs after it has released the lock
        try:
            _free_left()
        finally:
            _one_at_a_time.release()
    if wait:
        with _one_at_a_time:
            pass  # another thread has taken the last graph, and frees it


def _free_left() -> None:
    while _left or _removed:
        try:
            _free([_left.pop()] if _left else [*_removed.popleft()])
        except (KeyError, IndexError):
            return


def _free(objects: list[object]) -> None:
    """Frees the list's objects and what they reach, unless something outside refers to them.

    Objects that something outside refers to are kept, with all that they reach.
    The references are counted before and after Python's own counts are read. If both are equal,
    they are right for that moment. If they differ, because a part was moved meanwhile, all objects
    are kept. If nothing outside referred to a part at that moment, nothing can get a reference to
    it later.
    """
    known = _reach(objects)
    # One call in C, during which no other thread runs.
    counts = list(map(sys.getrefcount, objects))
    references = _references(objects)
    ids = [*map(id, objects)]
    if [*map(known.__getitem__, ids)] == [*map(references.__getitem__, ids)]:
        outside = [
            each
            for each, count in zip(objects, counts, strict=True)
            if count - _OWN != references[id(each)]
        ]
        kept = _reached(outside, references)
        del outside
        for each in objects:
            if (empty := _emptied(type(each))) and id(each) not in kept:
                _drop(each, empty)
    while objects:
        del objects[-_AT_ONCE:]


def _drop(each: object, deleters: Iterable[Callable[[object], None]]) -> None:
    for delete in deleters:
        try:  # noqa: SIM105 - `suppress` takes several times as long
            delete(each)
        except AttributeError:
            pass


def _reach(objects: list[object]) -> Counter[int]:
    """Adds to the list all objects that its objects reach. Returns how often the objects refer to
    each one, by its id."""
    references: Counter[int] = Counter()
    known = set(map(id, objects))
    done = 0
    large = False
    while done < len(objects):
        if len(objects) > _LARGE and not large:
            large = True
            gc.collect(1)
        # Texts and numbers, which the collector does not track, are half of all.
        referents = [*filter(gc.is_tracked, gc.get_referents(*objects[done : done + _AT_ONCE]))]
        done = min(done + _AT_ONCE, len(objects))
        met: dict[int, object] = {}
        for at in range(0, len(referents), _LARGE):
            some = referents[at : at + _LARGE]
            ids = [*map(id, some)]
            references.update(ids)
            met.update(zip(ids, some, strict=True))
        fresh = met.keys() - known
        known |= fresh
        objects += filter(_is_followed, map(met.__getitem__, fresh))
    return references


def _references(objects: list[object]) -> Counter[int]:
    """How often the objects refer to each one, by its id."""
    references: Counter[int] = Counter()
    if len(objects) > _LARGE:
        gc.collect(1)
    for start in range(0, len(objects), _AT_ONCE):
        referents = gc.get_referents(*objects[start : start + _AT_ONCE])
        for at in range(0, len(referents), _LARGE):
            references.update(map(id, referents[at : at + _LARGE]))
    return references


def _reached(objects: Iterable[object], within: Mapping[int, int]) -> set[int]:
    """The ids of the objects, and of all among `within` that they reach."""
    ahead = list(objects)
    met = set(map(id, ahead))
    while ahead:
        now, ahead = ahead[:_AT_ONCE], ahead[_AT_ONCE:]
        referents: list[object] = gc.get_referents(*now)
        for referent in referents:
            if id(referent) not in met and id(referent) in within and _is_followed(referent):
                met.add(id(referent))
                ahead.append(referent)
    return met


def _is_followed(each: object) -> bool:
    """Whether the object may refer to parts of graphs. The numbers and texts of an attribute refer
    to nothing. Following a list of a million of them would stop the other threads."""
    kind = type(each)
    if kind is ir.Attr:
        return cast("ir.Attr", each).type in _OF_GRAPHS
    if kind is list or kind is tuple:
        elements = cast("Sequence[object]", each)
        return not (elements and isinstance(elements[0], _PLAIN))
    return _belongs(kind)


def _is_part(kind: type) -> bool:
    """Whether objects of this type make up graphs. Objects of other types are not followed, so a
    part that one of them holds counts as held from outside. Shapes, types and tensors hold none."""
    containers = (dict, list, tuple, set)
    ours = kind.__module__.partition(".")[0] == "onnx_ir" and not issubclass(kind, _LEAVES)
    return ours or issubclass(kind, containers)


_belongs: Callable[[type], bool] = cache(_is_part)


def _deleters(kind: type) -> tuple[Callable[[object], None], ...]:
    """What drops all that an object of a graph refers to. Containers, attributes and nodes need
    none: they only hold each other by way of values, graphs and their lists of nodes."""
    is_ours = kind.__module__.partition(".")[0] == "onnx_ir"
    if not is_ours or issubclass(kind, (tuple, ir.Attr, ir.Node)):
        return ()
    deleters: list[Callable[[object], None]] = [
        member.__delete__
        for base in kind.__mro__
        for member in vars(base).values()
        if isinstance(member, types.MemberDescriptorType)
    ]
    if kind.__dictoffset__:
        deleters.append(lambda each: vars(each).clear())
    return tuple(deleters)


_emptied: Callable[[type], tuple[Callable[[object], None], ...]] = cache(_deleters)
