"""The infer requests of one compiled network, and what a run that failed leaves behind.

An operation takes down the shapes that it gets before it finds that they do not fit. With the same
shapes again it takes all for known, and its output keeps the shape that an earlier run gave it, or
the run fails as that one did. That memory is a stream's, and which stream ran a request OpenVINO
does not tell. So once a run of a network without fixed shapes has failed, nothing more is believed
that the compiled network computes: it is compiled again. From then on the network's `shapes` judge
each request before it runs, so that a client whose requests do not fit costs the others no more
compiles.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.session.profiling import kind
from headrace.plugins.openvino.session.requests import Compiled, Request

_CARELESS: Final = frozenset({"Col2Im"})
"""Types of layers that compute something of any values for their sizes."""


class Pool:
    """As many requests as streams. No lock: the deque's own operations are atomic, and `spoilt` is
    only ever set.

    Attributes:
        spoilt: a run has failed, and later ones may have gone wrong.
        unjudged: nobody looks before a run whether a request fits, and there is an operation that
            does not look either.
    """

    def __init__(self, compiled: Compiled, count: int) -> None:
        self.compiled = compiled
        self.spoilt = False
        graph = compiled.model.get_runtime_model()
        self._remembers = _remembers_shapes(graph)
        self.unjudged = compiled.shapes is None and _has_careless(graph)
        self._requests = tuple(Request(compiled, number) for number in range(count))
        self._idle = deque(self._requests)

    def take(self) -> Request:
        """An idle request; there is one for each stream."""
        return self._idle.pop()

    def give_back(self, request: Request) -> None:
        self._idle.append(request)

    def failed(self) -> None:
        """Takes note that a run failed."""
        self.spoilt = self._remembers

    def vouches_for(self, request: Request) -> bool:
        """Whether the run that `request` has just ended saw nothing that a failed one left: none
        has failed so far, noticed or not."""
        if not self._remembers:
            return True
        others = (each for each in self._requests if each is not request)
        return not (self.spoilt or any(each.has_failed() for each in others))


def _remembers_shapes(runtime_model: openvino.Model) -> bool:
    return any(
        output.get_partial_shape().is_dynamic
        for operation in runtime_model.get_ops()
        for output in operation.outputs()
    )


def _has_careless(runtime_model: openvino.Model) -> bool:
    return any(kind(each) in _CARELESS for each in runtime_model.get_ops())
