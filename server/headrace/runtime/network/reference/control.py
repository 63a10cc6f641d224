"""Operators of control flow, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as OpLoop

from headrace.runtime.network.reference.norms import opset_of
from headrace.runtime.network.reference.texts import count_texts, refuse_many

_SCAN_WITHOUT_BATCH = 9


class Loop(OpLoop):
    """Stacks collected values of any rank along a new first axis. A missing condition is true.

    https://onnx.ai/onnx/operators/onnx__Loop.html
    """

    body: Any
    _run_body: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)  # type: ignore[no-untyped-call]
        if not self.body.rt_nodes_:  # nothing could check whether the result is still wanted
            raise NotImplementedError("a Loop whose body has no layers")

    def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
        trips, cond, *initial = inputs
        context = options.pop("context", None) or {}
        options.pop("body", None)
        names, state, going = self.body.input_names, initial, cond is None or bool(cond)
        collected: list[list[Any]] = [[] for _ in range(self.K)]
        count = 0
        while going and (trips is None or count < trips):
            given = (np.array(count, np.int64), np.array(going), *state)
            feeds = {**context, **dict(zip(names, given, strict=True))}
            more, *outputs = self._run_body(feeds, **options)
            going, state = bool(more), outputs[: self.N]
            for rows, value in zip(collected, outputs[self.N :], strict=True):
                rows.append(value)
            count += 1
        if not count and collected:
            declared = self.body.proto_.output[1 + self.N :]
            return (*state, *map(_empty, declared))
        return (*state, *map(stacked, collected))


def _empty(declared: onnx.ValueInfoProto) -> Any:
    """No values of a type, along a new first axis."""
    kind = declared.type.tensor_type
    sizes = [size.dim_value for size in kind.shape.dim if size.HasField("dim_value")]
    if not kind.elem_type or not kind.HasField("shape") or len(sizes) < len(kind.shape.dim):
        raise ValueError("no iteration tells the shape of what the loop collects")
    return np.empty((0, *sizes), onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))


def stacked(values: list[Any], axis: int = 0) -> Any:
    """The values along a new axis, if they are not too many texts."""
    refuse_many(*count_texts(values))
    return np.stack(values, axis)


class Scan(OpRun):
    """Scans along any axes and in both directions. Looks how many texts it collects before it makes
    an array of them.

    https://onnx.ai/onnx/operators/onnx__Scan.html
    """

    body: Any
    num_scan_inputs: int
    _run_body: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if opset_of(self) < _SCAN_WITHOUT_BATCH:
            raise NotImplementedError("Scan over a batch, as before operator set 9")
        if self.num_scan_inputs < 1:
            raise ValueError("a Scan that scans nothing")

    def need_context(self) -> bool:
        """The body may use values of the graph around it."""
        return True

    def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
        first = len(inputs) - self.num_scan_inputs
        state = inputs[:first]
        axes, ways = self._all("input_axes"), self._all("input_directions")
        scanned = [
            np.moveaxis(array, axis, 0)[:: -1 if back else 1]
            for array, axis, back in zip(inputs[first:], axes, ways, strict=False)
        ]
        steps = {len(array) for array in scanned}
        if len(steps) > 1:
            raise ValueError(f"the inputs have {sorted(steps)} elements to scan")
        collected: list[list[Any]] = [[] for _ in self.body.output_names[first:]]
        context, passed = options.get("context") or {}, {"bindings": options.get("bindings")}
        for given in zip(*scanned, strict=True):
            values = zip(self.body.input_names, (*state, *map(np.asarray, given)), strict=False)
            outputs = self._run_body({**context, **dict(values)}, **passed)
            state = tuple(outputs[:first])
            for rows, value in zip(collected, outputs[first:], strict=True):
                rows.append(value)
        if not steps - {0} and collected:
            raise ValueError("the scan has no elements, so the shape of its result is not known")
        axes, ways = self._all("output_axes"), self._all("output_directions")
        found = [
            stacked(rows[:: -1 if back else 1], axis)
            for rows, axis, back in zip(collected, axes, ways, strict=False)
        ]
        return (*state, *found)

    def _all(self, name: str) -> Iterator[int]:
        """An attribute's numbers, each 0 if it is not given."""
        return chain(getattr(self, f"scan_{name}", None) or (), repeat(0))


class Optional(OpRun):
    """Returns a value that is present without a wrapper, as for an input of the network."""

    def _run(self, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        return inputs
