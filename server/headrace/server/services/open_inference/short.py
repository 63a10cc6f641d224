"""Decodes small ModelInferRequests that are like earlier ones, without parsing them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from headrace.server.services.open_inference.call import InferCall
from headrace.wire import framing
from headrace.wire.layouts import Layouts, Places, only

_ID: Final = 3  # the number of id in ModelInferRequest
_RAW: Final = 7


class CallLayouts:
    """`Layouts` of ModelInferRequests. Requests with a sequence, with typed contents, or with
    tensors in shared memory are always parsed. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._layouts: Layouts[InferCall] = Layouts(_places)

    def read(self, data: bytes) -> InferCall | None:
        """The call in the message `data`, or None if the message has to be parsed."""
        known = self._layouts.read(data)
        if known is None:
            return None
        call, identifier, decoded = known
        inputs: Any = decoded
        return InferCall(
            call.model,
            call.version,
            identifier,
            inputs,
            call.outputs,
            call.priority,
            call.timeout_seconds,
        )

    def learn(self, data: bytes, call: InferCall) -> None:
        """Remembers the layout of a call that had to be parsed."""
        if call.sequence is None and not call.empty_final:
            inputs: Any = call.inputs
            said = replace(call, inputs={})
            self._layouts.learn(data, said, call.id, inputs, len(call.outputs))


def _places(data: bytes) -> Places | None:
    raw = framing.split(data, 0, len(data), _RAW)
    if raw is None:
        return None
    return Places(raw.payloads, only(data, (0, len(data)), _ID))
