"""The infer requests of one compiled network, and the effects of a failed run on later runs.

An operation stores the shapes that it gets before it finds that they do not fit. If it gets the
same shapes again, it does not check them again. Then its output keeps the shape that an earlier run
gave it, or the run fails as the earlier run did. Each stream has its own memory of shapes, and
OpenVINO does not tell which stream ran a request. So after a failed run of a network without fixed
shapes, no result of the compiled network is trusted, and the network is compiled again. From then
on the network's `shapes` check each request before it runs, so that a client whose requests do not
fit costs the other clients no more compiles.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.session.profiling import kind
from headrace.plugins.openvino.session.requests import Compiled, Request

_CARELESS: Final = frozenset({"Col2Im"})
"""Types of layers that accept any values as their sizes and compute a result from them."""


class Pool:
    """Holds one request for each stream. It needs no lock: the deque's own operations are atomic,
    and `spoilt` is never cleared.

    Attributes:
        spoilt: a run has failed, and later runs may be wrong.
        unjudged: no check before a run finds whether a request fits, and the network has an
            operation that does not check it either.
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
        """Takes an idle request. There is one for each stream."""
        return self._idle.pop()

    def give_back(self, request: Request) -> None:
        self._idle.append(request)

    def serves(self, *, judged: bool) -> bool:
        """Whether its results can be trusted.

        Args:
            judged: requests must be checked before they run.
        """
        unjudged = self.unjudged or (judged and self.compiled.shapes is None)
        return not self.spoilt and not unjudged

    def failed(self) -> None:
        """Records that a run failed."""
        self.spoilt = self._remembers

    def vouches_for(self, request: Request) -> bool:
        """Whether no failed run can have affected the run that `request` has just ended. That is so
        if no run has failed so far, even unnoticed, or if failed runs have no effect."""
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
