"""The infer requests of one compiled network, and what a run that failed leaves behind.

A Reshape whose pattern is computed takes down the pattern before it finds that it does not fit.
With the same pattern and shape again it takes both for known, and its output keeps the shape that
an earlier run gave it. That memory is a stream's, and which stream ran a request OpenVINO does not
tell. So once a run of such a network has failed, nothing more is believed that the compiled network
computes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.requests import Compiled, Request

_CONSTANT: Final = ("Const", "Constant")


class Pool:
    """As many requests as streams. No lock: the deque's own operations are atomic, and `spoilt` is
    only ever set.

    Attributes:
        spoilt: a run has failed, and later ones may have gone wrong.
    """

    def __init__(self, compiled: Compiled, count: int) -> None:
        self.compiled = compiled
        self.spoilt = False
        self._remembers = _remembers_patterns(compiled.model.get_runtime_model())
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


def _remembers_patterns(runtime_model: openvino.Model) -> bool:
    for operation in runtime_model.get_ops():
        if _kind(operation) == "Reshape" and operation.get_input_size() > 1:
            pattern = operation.input_value(1).get_node()
            if _kind(pattern) not in _CONSTANT:
                return True
    return False


def _kind(operation: openvino.Node) -> str:
    info = operation.get_rt_info()
    return str(info["layerType"].astype(str)) if "layerType" in info else operation.get_type_name()
