"""A network on the device. It is first evaluated node by node, and later runs captured kernels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final, TypeAlias

import numpy as np
import onnx_ir as ir
from tinygrad.engine.jit import JitError, TinyJit
from tinygrad.tensor import Tensor

from headrace.plugins.opencl.backend.kernel_folder import KernelFolder
from headrace.plugins.opencl.backend.thread import ENOUGH_KERNELS, bound_kernels
from headrace.plugins.opencl.backend.values import Value, in_memory, realize, to_device, to_host
from headrace.plugins.opencl.running.evaluator import Evaluation, Timed, TinygradEvaluator
from headrace.plugins.opencl.running.on_host import HOST_ELEMENTS, known_inputs
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.values import Array

Output: TypeAlias = "Array | None"

_Key: TypeAlias = tuple[Any, ...]

_MOST_KERNELS: Final = 4 * ENOUGH_KERNELS
"""Most kernels that tinygrad keeps for runs that are not captured. With a smaller limit, a large
network would make its kernels again in each run."""


class OpenClSession:
    """For the backend's thread only.

    A session keeps kernels for each combination of the inputs' shapes and the values of the inputs
    that decide shapes. The first run of a combination is not captured. The second run is captured,
    and from the third run on, the captured kernels run. The most recently used combinations are
    kept.

    Args:
        model: the model, transformed for the device.
        device: tinygrad's name of the device, for example ``CL:0``.
        capacity: the number of combinations to keep.
        kernels: the folder that keeps kernels on disk.
    """

    def __init__(self, model: ir.Model, device: str, capacity: int, kernels: KernelFolder) -> None:
        self._kernels = kernels
        self._evaluator = TinygradEvaluator(model, device)
        self._device = device
        self._capacity = capacity
        self._known = known_inputs(model)
        self._names = [value.name or "" for value in model.graph.outputs]
        self._jits: OrderedDict[_Key, _Captured | None] = OrderedDict()

    def run(
        self, inputs: Mapping[str, Any], token: CancelToken, timed: Timed | None = None
    ) -> dict[str, Output]:
        """All outputs by name.

        Args:
            timed: called with each layer and its seconds. Layers are then computed one by one,
                which is slower.

        Raises:
            As `TinygradEvaluator.evaluate`.
        """
        known = {name for name in self._known if _is_small(inputs.get(name))}
        key = self._key(inputs, known)
        if key is None:
            self._bound(_MOST_KERNELS)
            return self._evaluate(inputs, known, token, timed)[0]
        if key not in self._jits:
            self._bound()  # before new kernels are made, because the next capture needs them
            outputs, varies = self._evaluate(inputs, known, token, timed)
            self._keep(key, None if varies else _Captured(self._evaluator, self._device, known))
            return outputs
        self._jits.move_to_end(key)
        captured = self._jits[key]
        if captured is not None and timed is None:
            try:
                with nullcontext() if captured.is_made else self._kernels.making():
                    return dict(zip(self._names, captured(inputs), strict=True))
            except (JitError, AssertionError):
                self._jits[key] = None  # nothing to capture
        self._bound(_MOST_KERNELS)
        return self._evaluate(inputs, known, token, timed)[0]

    def warm(self, inputs: Mapping[str, Any], token: CancelToken) -> None:
        """Makes kernels for these inputs' shapes before the first request needs them."""
        for _ in range(2):
            self.run(inputs, token)

    @property
    def can_be_warmed(self) -> bool:
        """Whether example inputs can warm the network. They cannot if an input's value decides a
        shape."""
        return not self._known

    def close(self) -> None:
        """Frees the device's memory. The session cannot run after that."""
        for captured in self._jits.values():
            if captured is not None:
                captured.close()
        self._jits.clear()
        del self._evaluator

    # -- inside --

    def _bound(self, most: int = ENOUGH_KERNELS) -> None:
        bound_kernels(most)
        self._kernels.bound()

    def _keep(self, key: _Key, captured: _Captured | None) -> None:
        self._jits[key] = captured
        while len(self._jits) > self._capacity:
            _, oldest = self._jits.popitem(last=False)
            if oldest is not None:
                oldest.close()

    def _key(self, inputs: Mapping[str, Any], known: set[str]) -> _Key | None:
        """The combination that the inputs belong to. None if its kernels cannot be captured."""
        if not self._capacity:
            return None
        parts: list[Any] = []
        for name in sorted(inputs):
            value = inputs[name]
            if name in known:
                parts.append((name, value.dtype.str, value.shape, value.tobytes()))
            elif isinstance(value, np.ndarray) and value.size:
                parts.append((name, value.shape))
            elif value is None:
                parts.append((name, None))
            else:
                return None
        return tuple(parts)

    def _evaluate(
        self,
        inputs: Mapping[str, Any],
        known: set[str],
        token: CancelToken,
        timed: Timed | None,
    ) -> tuple[dict[str, Output], bool]:
        evaluation = Evaluation(token, timed=timed)
        with self._kernels.making():
            given = {
                name: _given(each, name in known, self._device) for name, each in inputs.items()
            }
            outputs = self._evaluator.evaluate(evaluation, given)
            realize(outputs)
            fetched = [_fetch(value, self._device) for value in outputs]
        return dict(zip(self._names, fetched, strict=True)), evaluation.varies


class _Captured:
    """The kernels of one combination.

    Attributes:
        is_made: the kernels have run, and are in memory.
    """

    def __init__(self, evaluator: TinygradEvaluator, device: str, known: set[str]) -> None:
        self._evaluator = evaluator
        self._device = device
        self._known = known
        self._names: list[str] = []
        self._values: Mapping[str, Any] = {}
        self._form: list[Value] = []
        self._jit = TinyJit(self._compute, prune=True)
        self._jit.cnt = 1  # TinyJit skips the first run, which is over already
        self.is_made = False

    def __call__(self, inputs: Mapping[str, Any]) -> list[Output]:
        self._names = [
            name
            for name, value in inputs.items()
            if name not in self._known and isinstance(value, np.ndarray)
        ]
        self._values = {name: value for name, value in inputs.items() if name not in self._names}
        tensors = [to_device(inputs[name], self._device).realize() for name in self._names]
        computed = iter(self._jit(*tensors))
        values = (next(computed) if isinstance(item, Tensor) else item for item in self._form)
        fetched = [_fetch(value, self._device) for value in values]
        self.is_made = True
        return fetched

    def close(self) -> None:
        """Breaks the reference cycle between the kernels and the objects that they were captured
        from."""
        del self._jit

    def _compute(self, *tensors: Tensor) -> list[Tensor]:
        given = {**self._values, **dict(zip(self._names, tensors, strict=True))}
        outputs = self._evaluator.evaluate(Evaluation(CancelToken()), given)
        self._form = outputs
        return [_own(output, self._device) for output in outputs if isinstance(output, Tensor)]


def _own(tensor: Tensor, device: str) -> Tensor:
    """The tensor in its own memory. A view of an input or a weight is copied, because the input
    will be another one when the kernels run again."""
    return tensor.clone() if tensor.uop.base.is_realized else in_memory(tensor, device)


def _given(value: Any, known: bool, device: str) -> Value:
    if value is None or known:
        given: Value = value
        return given
    return to_device(value, device)


def _fetch(value: Value, device: str) -> Output:
    if isinstance(value, Tensor):
        return to_host(value, device)
    return None if value is None else np.array(value)


def _is_small(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.size <= HOST_ELEMENTS
