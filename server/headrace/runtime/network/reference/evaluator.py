"""onnx's reference evaluator, with its errors corrected or the affected layers refused.

The errors were found by running onnx's own backend cases through version 1.23. The evaluator

- stacks the values that a Loop collects as rows, whatever their rank,
- gives Softmax and similar operators of old operator sets the meaning of new ones,
- mixes the batch's statistics into a BatchNormalization that does not train, and gives the
  statistics of one that trains the type of the input,
- treats the sequences of a recurrent layer as equally long,
- wraps optionals,
- subtracts negative numbers from an L1 norm,
- takes the maximum over the wrong axes if a GlobalMaxPool does not have two spatial axes,
- normalises as many channels of an LRN as the batch has elements,
- rounds down if a MaxPool pads in front,
- cuts nothing off if a Pad is negative,
- takes an STFT's batch as its length if the signal has no axis for real and imaginary parts,
- gathers only from axes with few elements, and lets an index that is out of bounds wrap around,
- adds padding twice if a MaxPool rounds up,
- takes the wrong point if a Resize by pytorch_half_pixel makes one element,
- rounds the fractional depth of a OneHot up,
- inserts an element at the wrong place if it belongs at the end of a sequence,
- accepts lengths of a split that do not add up,
- drops empty texts,
- continues an Attention's mask before operator set 24,
- pools windows that are larger than the image,
- counts a MaxPool's indices wrongly,
- takes unique parts along the wrong axis,
- does not accept a diagonal beyond the machine's integers, and
- gives the mean of a LayerNormalization the precision of the input.

A RegexFullMatch is evaluated by RE2, whose syntax ONNX specifies. Python's `re` takes exponential
time for some expressions, and no other thread of the process runs meanwhile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_gru, op_lstm, op_rnn
from onnx.reference.ops.op_attention import Attention_24, Attention_25
from onnx.reference.ops.op_hardmax import Hardmax as OpHardmax
from onnx.reference.ops.op_log_softmax import LogSoftmax as OpLogSoftmax
from onnx.reference.ops.op_loop import Loop as OpLoop
from onnx.reference.ops.op_optional import Optional as OpOptional
from onnx.reference.ops.op_scan import Scan as OpScan
from onnx.reference.ops.op_softmax import Softmax as OpSoftmax

from headrace.runtime.network.reference_norms import (
    BatchNormalization,
    LayerNormalization,
    LpNormalization,
    opset_of,
)
from headrace.runtime.network.reference_parts import GatherElements, Trilu, Unique
from headrace.runtime.network.reference_sequences import (
    OneHot,
    SequenceInsert,
    SplitToSequence,
    StringNormalizer,
)
from headrace.runtime.network.reference_windows import (
    LRN,
    AveragePool,
    GlobalMaxPool,
    MaxPool,
    Pad,
    Resize,
)
from headrace.runtime.network.values import Value

try:
    import re2
except ImportError:  # no wheel for this platform
    re2 = None

_SOFTMAX_OF_ONE_AXIS = 13
_SCAN_WITHOUT_BATCH = 9


class CorrectedEvaluator(ReferenceEvaluator):
    """Takes the same arguments as onnx's evaluator. A layer that it cannot compute raises when the
    evaluator is made."""

    def __init__(self, proto: Any, **options: Any) -> None:
        # The evaluators of bodies and functions get the corrected operators here, too.
        super().__init__(proto, **{**options, "new_ops": [*_CORRECTED]})


def answer(output: Any, dtype: ir.DataType) -> Value:
    """A result as an output of the network. It is a copy with the port's type and strings as
    objects, and never a view of an input. onnx's operators do not always return the type that ONNX
    specifies."""
    if isinstance(output, list):
        return [answer(element, dtype) for element in output]
    array = np.array(output)
    if array.dtype.kind in "SUO":
        return array.astype(object)
    return array.astype(dtype.numpy(), copy=False)


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
            raise ValueError("no iteration tells the shape of what the loop collects")
        return (*state, *map(np.stack, collected))


class Scan(OpScan):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)  # type: ignore[no-untyped-call]
        if opset_of(self) < _SCAN_WITHOUT_BATCH:
            raise NotImplementedError("Scan over a batch, as before operator set 9")


class Optional(OpOptional):
    """Returns a value that is present without a wrapper, as for an input of the network."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if not self.onnx_node.input:
            raise NotImplementedError("an Optional without a value")

    def _run(self, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        return inputs


class RegexFullMatch(OpRun):
    """Matches in time proportional to the length of the text, and lets other threads run."""

    pattern: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if re2 is None:
            raise NotImplementedError("RegexFullMatch: the package google-re2 is not installed")
        if isinstance(self.pattern, str):  # it may be a reference to a function's attribute
            _expression(self.pattern)

    def _run(self, x: Any, pattern: Any = None) -> tuple[Any, ...]:
        expression = _expression(pattern)
        matched = [expression.fullmatch(each) is not None for each in x.reshape(-1).tolist()]
        return (np.array(matched, np.bool_).reshape(x.shape),)


@lru_cache(maxsize=64)
def _expression(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise ValueError(f"{pattern!r} is not an RE2 expression: {reason}") from None


class Attention(OpRun):
    """Broadcasts a mask before operator set 24. Since then, a short mask is continued."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        opset = opset_of(self)
        self._broadcasts = opset < 24
        made = Attention_25 if opset >= 25 else Attention_24
        self._wrapped: Any = made(*arguments)

    def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
        query, key, value, *rest = inputs
        mask = rest[0] if rest else None
        if self._broadcasts and mask is not None:
            past = rest[1] if len(rest) > 1 else None
            keys = key.shape[-2] + (0 if past is None else past.shape[2])
            rest[0] = np.broadcast_to(mask, (*mask.shape[:-1], keys))
        found: tuple[Any, ...] = self._wrapped._run(query, key, value, *rest, **options)
        return found


class STFT(OpRun):
    """Multiplies each frame of the signal by the window, and transforms it.

    https://onnx.ai/onnx/operators/onnx__STFT.html
    """

    def _run(
        self,
        signal: Any,
        frame_step: Any,
        window: Any = None,
        frame_length: Any = None,
        onesided: int = 1,
    ) -> tuple[Any, ...]:
        if signal.ndim == 2:  # not in the specification, but exporters write it
            signal = signal[..., np.newaxis]
        step, length = np.asarray(frame_step).item(), signal.shape[1]
        if frame_length is not None:
            length = np.asarray(frame_length).item()
        elif window is not None:
            length = len(window)
        if step < 1 or length < 1 or length > signal.shape[1]:
            raise ValueError(
                f"frames of {length} every {step} do not fit a signal of {signal.shape[1]}"
            )
        if window is not None and len(window) != length:
            raise ValueError(f"the window has {len(window)} elements, a frame has {length}")
        wide = signal.astype(np.float64)
        values = wide[..., 0] if wide.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
        frames = np.lib.stride_tricks.sliding_window_view(values, length, axis=1)[:, ::step]
        spectrum = np.fft.fft(frames if window is None else frames * window)
        if onesided:
            spectrum = spectrum[..., : length // 2 + 1]
        return (np.stack((spectrum.real, spectrum.imag), axis=-1).astype(signal.dtype),)


def _of_one_length(base: Any) -> Any:
    """A recurrent layer that refuses rows of different lengths. onnx's layer treats them as equally
    long."""

    class OneLength(base):  # type: ignore[misc]
        def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
            steps = inputs[0].shape[1 if options.get("layout") else 0]
            if len(inputs) > 4 and inputs[4] is not None and (inputs[4] != steps).any():
                raise NotImplementedError("sequences that are shorter than the longest")
            found: tuple[Any, ...] = super()._run(*inputs, **options)
            return found

    OneLength.__name__ = base.__name__.partition("_")[0]  # the evaluator finds it by this name
    return OneLength


def _coercing(base: Any) -> Any:
    """A Softmax or similar operator that joins all axes from the given one, by default 1, before
    operator set 13."""

    class Coercing(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._first: int | None = None
            if opset_of(self) < _SOFTMAX_OF_ONE_AXIS:
                given = [each.i for each in self.onnx_node.attribute if each.name == "axis"]
                self._first, self.axis = (given or [1])[0], -1

        def _run(self, x: Any) -> tuple[Any, ...]:
            if self._first is None or not x.size:
                return (*super()._run(x),)
            rows = int(np.prod(x.shape[: self._first % x.ndim]))
            (result,) = super()._run(x.reshape(rows, -1))
            return (result.reshape(x.shape),)

    Coercing.__name__ = base.__name__  # the evaluator finds it by this name
    return Coercing


_CORRECTED = (
    *map(_of_one_length, (op_gru.GRU, op_lstm.LSTM, op_rnn.RNN_14)),
    *map(_coercing, (OpHardmax, OpLogSoftmax, OpSoftmax)),
    Attention,
    AveragePool,
    BatchNormalization,
    GatherElements,
    GlobalMaxPool,
    LRN,
    LayerNormalization,
    Loop,
    LpNormalization,
    MaxPool,
    OneHot,
    Optional,
    Pad,
    RegexFullMatch,
    Resize,
    STFT,
    Scan,
    SequenceInsert,
    SplitToSequence,
    StringNormalizer,
    Trilu,
    Unique,
)
