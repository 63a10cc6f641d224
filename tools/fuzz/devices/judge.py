"""Judges a device's answer by the reference's answer, and by another device's."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tools.fuzz.devices import canaries
from tools.fuzz.devices.answer import TWO_ANSWERS, Answer, How, Reply
from tools.fuzz.devices.compare import differs, error_of
from tools.fuzz.devices.undefined import reasons as undefined
from tools.fuzz.devices.values import is_float, wide
from tools.fuzz.devices.variant import Feed, Variant


class Verdict(enum.Enum):
    """The result of a network or of a request; the value is its heading in tables."""

    RIGHT = "right"
    REFUSED = "network refused"
    REQUEST_REFUSED = "request refused"
    NO_MEMORY = "no memory"
    UNDEFINED = "undefined by ONNX"
    DOUBTED = "right by the other device alone"
    DISPUTED = "all three differ"
    UNKNOWN = "no reference"
    SLOW = "slow once"
    WRONG = "wrong"
    INVALID = "answers what is invalid"
    FOREIGN = "foreign memory"
    UNSTEADY = "not the same twice"
    ENDED = "process ended"
    HUNG = "hung"
    INTERNAL = "internal error"
    DISAGREES = "query yes, load no"


FAILURES = (
    Verdict.WRONG,
    Verdict.INVALID,
    Verdict.FOREIGN,
    Verdict.UNSTEADY,
    Verdict.ENDED,
    Verdict.HUNG,
    Verdict.INTERNAL,
    Verdict.DISAGREES,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict.

    Attributes:
        feed: the number of the request; None for the whole network.
        kind: what sort of failure it is: the same for failures of the same sort.
        text: what happened.
    """

    verdict: Verdict
    feed: int | None = None
    kind: str = ""
    text: str = ""


Ask = Callable[[], Answer | None]


def judge(
    variant: Variant,
    device: Answer,
    reference: Ask,
    second: Ask,
    rounded: Ask = lambda: None,
    widened: Ask = lambda: None,
) -> list[Finding]:
    """The verdict on the network, or on each of its requests if it was loaded.

    Args:
        reference, second: called only where their answers are needed; None if there is none.
        rounded: the reference's answers to all requests, again and again, with their numbers moved
            by some steps of their type; called where the network may rest on how they are rounded.
        widened: the reference's answers where floats of 16 bits have 32; None if there are none.
    """
    if device.how in (How.ENDED, How.HUNG):
        verdict = Verdict.ENDED if device.how is How.ENDED else Verdict.HUNG
        if verdict is Verdict.HUNG and _is_endless(reference()):
            return [Finding(Verdict.NO_MEMORY, text="the reference does not end either")]
        if device.how is How.ENDED and _takes_all_memory(variant, reference()):
            return [Finding(Verdict.NO_MEMORY, text="a loop, for which the reference has no end")]
        return [Finding(verdict, None, f"{device.stage.value}, {device.text}", device.text)]
    if device.how is How.BROKEN:
        return [Finding(Verdict.INTERNAL, None, device.stage.value, device.text)]
    if device.how is How.NO_MEMORY:
        return [Finding(Verdict.NO_MEMORY, text=device.text)]
    if device.how is How.REFUSED:
        if device.claimed and _runs(variant, reference()):
            return [Finding(Verdict.DISAGREES, None, device.stage.value, device.text)]
        return [Finding(Verdict.REFUSED, text=device.text)]
    return [
        _judge_reply(variant, number, reply, reference, second, rounded, widened)
        for number, reply in enumerate(device.replies)
    ]


def _judge_reply(
    variant: Variant,
    number: int,
    reply: Reply,
    reference: Ask,
    second: Ask,
    rounded: Ask,
    widened: Ask,
) -> Finding:
    if reply.foreign and not _only_looks_unwritten(variant, number, reply, reference):
        return Finding(Verdict.FOREIGN, number, reply.foreign, reply.foreign)
    if reply.unsteady:
        kind = reply.unsteady.partition(":")[0]
        if kind == TWO_ANSWERS and undefined.is_random(variant, number):
            return Finding(Verdict.UNDEFINED, number, "random numbers", reply.unsteady)
        return Finding(Verdict.UNSTEADY, number, kind, reply.unsteady)
    if reply.how is How.BROKEN:
        return Finding(Verdict.INTERNAL, number, "run", reply.text)
    if reply.how is How.ENDED:
        return Finding(Verdict.ENDED, number, "run", reply.text)
    if reply.how is How.NO_MEMORY:
        return Finding(Verdict.NO_MEMORY, number, text=reply.text)
    if reply.how is How.REFUSED:
        return Finding(Verdict.REQUEST_REFUSED, number, text=reply.text)
    first = _reply(reference(), number)
    difference = _difference(variant, number, reply, first)
    if difference is None:
        return Finding(Verdict.RIGHT, number)
    why = undefined.reason(variant, number)
    open_kinds = ("values", "refused", *undefined.open_forms(variant))
    if why is not None and (first is None or difference[0] in open_kinds):
        return Finding(Verdict.UNDEFINED, number, why, difference[1])
    if difference[0] == "values" and _overflows(variant, number, reply, first):
        why = "numbers that overflow on the way"
        return Finding(Verdict.UNDEFINED, number, why, difference[1])
    if difference[0] == "values" and undefined.rests_on_rounding(variant):
        for moved in _replies(rounded(), number, len(variant.feeds)):
            if moved.how is How.ANSWERED and _difference(variant, number, moved, first) is not None:
                why = "numbers that are left of rounding"
                return Finding(Verdict.UNDEFINED, number, why, difference[1])
    if difference[0] == "values" and _keeps_digits(variant, number, reply, first, widened):
        why = "numbers that keep more digits between two layers than their type has"
        return Finding(Verdict.UNDEFINED, number, why, difference[1])
    answer = second()
    other = _reply(answer, number)
    if other is None or other.how not in (How.ANSWERED, How.REFUSED):
        if first is None or first.how is not How.ANSWERED:
            return Finding(Verdict.UNKNOWN, number, text=difference[1])
        return Finding(Verdict.WRONG, number, *difference)
    if _difference(variant, number, reply, other) is None:
        return Finding(Verdict.DOUBTED, number, *difference)
    if first is None or first.how not in (How.ANSWERED, How.REFUSED):
        return Finding(Verdict.UNKNOWN, number, text=difference[1])
    if first.how is How.REFUSED and other.how is How.REFUSED:
        if _is_empty(reply):
            return Finding(Verdict.UNDEFINED, number, "no elements, or no answer", first.text)
        text = f"the reference: {first.text}; the other device: {other.text}"
        return Finding(Verdict.INVALID, number, "answered", text)
    if first.how is other.how and _difference(variant, number, other, first) is None:
        return Finding(Verdict.WRONG, number, *difference)
    return Finding(Verdict.DISPUTED, number, *difference)


def _only_looks_unwritten(variant: Variant, number: int, reply: Reply, reference: Ask) -> bool:
    """Whether an output that looks like memory that nobody wrote is the right one."""
    if reply.foreign != canaries.UNWRITTEN:
        return False
    return _difference(variant, number, reply, _reply(reference(), number)) is None


def _difference(
    variant: Variant, number: int, reply: Reply, other: Reply | None
) -> tuple[str, str] | None:
    """The difference between two answers, its kind and its text; None if there is none."""
    if other is None:
        return "unknown", "the reference does not take the network"
    if other.how is not How.ANSWERED:
        return "refused", f"refused: {other.text}"
    assert reply.outputs is not None
    assert other.outputs is not None
    return differs(
        reply.outputs,
        other.outputs,
        steps=undefined.steps(variant),
        noise=undefined.noise(variant, number),
        least=undefined.coarseness(variant),
    )


def _overflows(variant: Variant, number: int, reply: Reply, first: Reply | None) -> bool:
    """Whether the answers differ only where the reference's one is not finite and the device's is.
    Of several layers that a device computes as one, the results in between are not rounded."""
    if len(variant.proto.graph.node) < 2 or first is None:
        return False
    finite = {}
    for name, value in (first.outputs or {}).items():
        own = (reply.outputs or {}).get(name)
        if not isinstance(value, np.ndarray) or not is_float(value.dtype):
            finite[name] = value
        elif isinstance(own, np.ndarray) and own.shape == value.shape:
            finite[name] = np.where(np.isfinite(wide(own)) & ~np.isfinite(wide(value)), own, value)
    return _difference(variant, number, reply, replace(first, outputs=finite)) is None


def _keeps_digits(
    variant: Variant, number: int, reply: Reply, first: Reply | None, widened: Ask
) -> bool:
    """Whether each element is what the reference has, or what it has in more bits. A device that
    computes several layers as one does not round in between, and then a Round or a Cast behind
    them takes the next integer."""
    more = _reply(widened(), number) if len(variant.proto.graph.node) > 1 else None
    if first is None or more is None or more.how is not How.ANSWERED:
        return False
    either = {}
    for name, value in (first.outputs or {}).items():
        own, other = ((each.outputs or {}).get(name) for each in (reply, more))
        arrays = [each for each in (value, own, other) if isinstance(each, np.ndarray)]
        numbers = all(each.dtype != object for each in arrays)
        if numbers and len(arrays) == 3 and len({each.shape for each in arrays}) == 1:
            error = error_of(value.dtype) if is_float(value.dtype) else 0.0
            near, far = (wide(each).astype(np.float64) for each in arrays[1:])
            alike = np.isclose(near, far, rtol=error, atol=0.0, equal_nan=True)
            value = np.where(alike, arrays[1], value)
        either[name] = value
    return _difference(variant, number, reply, replace(first, outputs=either)) is None


def _reply(answer: Answer | None, number: int) -> Reply | None:
    if answer is None or answer.how is not How.ANSWERED:
        return None
    return answer.replies[number]


def _replies(answer: Answer | None, number: int, count: int) -> tuple[Reply, ...]:
    """The replies to one of `count` requests that were sent again and again."""
    if answer is None or answer.how is not How.ANSWERED:
        return ()
    return answer.replies[number::count]


def _is_empty(reply: Reply) -> bool:
    outputs = (reply.outputs or {}).values()
    return all(isinstance(each, np.ndarray) and not each.size for each in outputs)


def _runs(variant: Variant, answer: Answer | None) -> bool:
    """Whether the network is a valid one: one of the requests that have the shapes which it
    declares was answered."""
    return answer is not None and any(
        reply.how is How.ANSWERED and _has_declared_shapes(variant, feed)
        for reply, feed in zip(answer.replies, variant.feeds, strict=False)
    )


def _has_declared_shapes(variant: Variant, feed: Feed) -> bool:
    for port in variant.proto.graph.input:
        value, declared = feed.get(port.name), port.type.tensor_type
        if not isinstance(value, np.ndarray) or not declared.HasField("shape"):
            continue
        sizes = [
            each.dim_value if each.HasField("dim_value") else None for each in declared.shape.dim
        ]
        if len(sizes) != value.ndim:
            return False
        if any(size not in (None, given) for size, given in zip(sizes, value.shape, strict=True)):
            return False
    return True


def _takes_all_memory(variant: Variant, answer: Answer | None) -> bool:
    """Whether the network collects the results of a loop that the reference does not end, either:
    the limit on memory ends the process then."""
    loops = any(node.op_type in ("Loop", "Scan") for node in variant.proto.graph.node)
    how = {reply.how for reply in answer.replies} if answer is not None else set()
    return loops and (_is_endless(answer) or How.NO_MEMORY in how)


def _is_endless(answer: Answer | None) -> bool:
    return answer is not None and answer.how is How.HUNG
