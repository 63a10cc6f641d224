"""Makes a run fail where ONNX Runtime would end the process, never end, or answer foreign memory.

Some kernels divide by a size that is 0, read axes that a tensor lacks, or negate the least integer.
What they take is not known before a run, so it passes through layers of ours first: these fail for
a value that the kernel does not survive, and change no other. They are left out where the network
proves that the value is sound. A shape that the network only declares proves nothing.

Found by giving ONNX Runtime 1.31 onnx's backend cases with inputs and attributes that are empty,
flat, omitted or at the ends of their ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.proven_shapes import ProvenShapes, constant
from headrace.runtime.naming import Names, value_names, walk
from headrace.runtime.provenance import origins, stamp

SUFFIX: Final = "/headrace.guard"  # of the names of layers that fail in place of another one
FAILS: Final = "a tensor is empty, has too few axes, or is 0 where a length is due"
_END: Final = 2**31 - 1  # of an axis; a slice is cut to what there is
_SLICE_TAKES_INPUTS: Final = 10
_INTEGERS: Final = (ir.DataType.INT32, ir.DataType.INT64)  # narrower ones are computed in int32


def guard(model: ir.Model) -> None:
    """Guards every layer of `model`, bodies included, that the backend may not survive."""
    for node in walk(model.graph):
        _drop_omitted_inputs(node)
    nodes = [node for node in walk(model.graph) if _needs_guard(node)]
    names, proven = value_names(model), ProvenShapes(model)
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    for node in nodes:
        _RULES[node.op_type](node, _Guard(node, names, proven, opset))


def guards_within_functions(model: ir.Model) -> bool:
    """Whether functions have layers to guard. They must be inlined for that: nothing is known about
    the values in a function."""
    return any(
        _needs_guard(node) for function in model.functions.values() for node in function.all_nodes()
    )


def _drop_omitted_inputs(node: ir.Node) -> None:
    """Drops the last inputs if they are left out: some kernels count them, and read them."""
    given = len(node.inputs)
    while given and node.inputs[given - 1] is None:
        given -= 1
    if given < len(node.inputs):
        node.resize_inputs(given)


def _needs_guard(node: ir.Node) -> bool:
    return node.op_type in _RULES and node.domain in ("", "ai.onnx")


class _Guard:
    """Puts layers before the node, or at the end of its `body`, which fail in its place."""

    def __init__(
        self,
        node: ir.Node,
        names: Names,
        proven: ProvenShapes,
        opset: int,
        body: ir.Graph | None = None,
    ) -> None:
        self._node = node
        self._names = names
        self.proven = proven
        self._opset = opset
        self._body = body
        self._stands_for: tuple[str, ...] = ()

    def within(self, body: ir.Graph) -> _Guard:
        return _Guard(self._node, self._names, self.proven, self._opset, body)

    def not_empty(self, value: ir.Value, free: int | None = None) -> ir.Value:
        """The value, of which no axis is empty, but for the axis `free`."""
        sizes = self.proven.sizes(value)
        axis = free
        if sizes is not None:
            rank = len(sizes)
            if free is not None and not -rank <= free < rank:
                return value  # the backend refuses it
            certain = (at for at, size in enumerate(sizes) if size)
            axis = next(certain, None) if free is None else free % rank
            others = [size for at, size in enumerate(sizes) if at != axis]
            if all(others):
                return value
            if 0 in others:  # it always fails, and so does the layer
                self._stands_for = origins(self._node)
            if axis is not None:
                wanted = [0] * rank  # which leaves them as they are
                wanted[axis] = -1  # found from the others, unless one of them is 0
                return self._reshaped(value, self.constant(np.array(wanted)))
        shape = self.layer("Shape", value)
        if axis is None:
            nothing = self.layer("Div", self.constant(np.array([0])), shape)  # fails for a 0
            return self._reshaped(value, self.layer("Add", shape, nothing))
        before = self._slice(shape, 0, axis)
        after = self._slice(shape, axis + 1 if axis != -1 else _END, _END)
        wanted_shape = self.layer("Concat", before, self.constant(np.array([-1])), after, axis=0)
        return self._reshaped(value, wanted_shape)

    def of_rank(self, value: ir.Value, least: int) -> ir.Value:
        """The value, which has at least so many axes."""
        if self.proven.sizes(value) is not None:
            return value
        shape = self.layer("Shape", value)
        first = self.layer("Gather", shape, self.constant(np.arange(least)))
        wanted = self.layer("Concat", first, self._slice(shape, least, _END), axis=0)
        return self._reshaped(value, wanted)

    def ranked(self, value: ir.Value, rank: int) -> ir.Value:
        """The value, which has so many axes."""
        if self.proven.sizes(value) is not None:
            return value
        return self._reshaped(value, self.constant(np.zeros(rank, np.int64)))

    def not_zero(self, value: ir.Value) -> ir.Value:
        """The integers, of which none is 0."""
        tensor = constant(value)
        if value.dtype is None or (tensor is not None and tensor.numpy().all()):
            return value
        zero = self.constant(np.zeros((), value.dtype.numpy()))
        return self.layer("Add", value, self.layer("Div", zero, value))

    def constant(self, array: Any) -> ir.Value:
        tensor = ir.tensor(array)
        return self.layer("Constant", value=tensor, type=ir.TensorType(tensor.dtype))

    def layer(
        self,
        op_type: str,
        *inputs: ir.Value,
        type: ir.TypeProtocol | None = None,
        shape: ir.Shape | None = None,
        **attributes: Any,
    ) -> ir.Value:
        name = self._names.fresh(f"{self._node.name}{SUFFIX}")
        if op_type == "Shape":
            type = ir.TensorType(ir.DataType.INT64)
        output = ir.Value(name=name, type=type or inputs[0].type, shape=shape)
        node = ir.node(op_type, inputs, attributes, outputs=[output], name=name)
        stamp(node, self._stands_for)
        if self._body is not None:
            self._body.append(node)
        else:
            assert self._node.graph is not None
            self._node.graph.insert_before(self._node, node)
        return output

    def _slice(self, shape: ir.Value, start: int, end: int) -> ir.Value:
        if self._opset < _SLICE_TAKES_INPUTS:
            return self.layer("Slice", shape, starts=[start], ends=[end])
        bounds = (self.constant(np.array([each])) for each in (start, end))
        return self.layer("Slice", shape, *bounds)

    def _reshaped(self, value: ir.Value, sizes: ir.Value) -> ir.Value:
        return self.layer("Reshape", value, sizes, type=value.type, shape=value.shape)


_Rule: TypeAlias = Callable[[ir.Node, _Guard], None]


def _each(node: ir.Node, indices: Sequence[int], guarded: Callable[[ir.Value], ir.Value]) -> None:
    """Guards the inputs at these places that are there."""
    for index in indices:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None:
            node.replace_input_with(index, guarded(value))


def _not_empty(index: int, free: int | None = None) -> _Rule:
    return lambda node, guard: _each(node, [index], lambda value: guard.not_empty(value, free))


def _scalars(*indices: int) -> _Rule:
    """The backend reads these inputs' first elements."""
    return lambda node, guard: _each(node, indices, guard.not_empty)


def _of_rank(least: int, index: int = 0) -> _Rule:
    return lambda node, guard: _each(node, [index], lambda value: guard.of_rank(value, least))


def _attention(node: ir.Node, guard: _Guard) -> None:
    """Keys of three axes have as many heads as the attributes say."""
    value = node.inputs[1]
    sizes = guard.proven.sizes(value) if value is not None else None
    if sizes is None or len(sizes) == 4:
        _not_empty(1, -2)(node, guard)


def _conv_integer(node: ir.Node, guard: _Guard) -> None:
    _of_rank(3)(node, guard)
    _not_empty(1, 0)(node, guard)  # without a sum, foreign memory


def _divide(node: ir.Node, guard: _Guard) -> None:
    """Does not divide by -1: the quotient of the least integer is none. x / -1 is -x / 1, and a
    remainder of -1 is one of 1."""
    dividend, divisor = node.inputs
    if dividend is None or divisor is None or divisor.dtype not in _INTEGERS:
        return
    tensor = constant(divisor)
    if tensor is not None and not (tensor.numpy() == -1).any():
        return
    number, truth = divisor.dtype.numpy(), ir.TensorType(ir.DataType.BOOL)
    one, minus_one = (guard.constant(np.array(each, number)) for each in (1, -1))
    negated = guard.layer("Equal", divisor, minus_one, type=truth)
    is_negated = guard.layer("Cast", negated, type=divisor.type, to=divisor.dtype.value)
    two = guard.layer("Add", is_negated, is_negated)  # and 0 elsewhere
    node.replace_input_with(1, guard.layer("Add", divisor, two))
    if node.op_type == "Div":
        sign = guard.layer("Sub", one, two)
        node.replace_input_with(0, guard.layer("Mul", dividend, sign))


def _einsum(node: ir.Node, guard: _Guard) -> None:
    terms = node.attributes.get_string("equation", "").partition("->")[0].split(",")
    for index, term in enumerate(terms[: len(node.inputs)]):
        if "." not in term:  # the backend counts the axes of an ellipsis
            _of_rank(len(term.replace(" ", "")), index)(node, guard)


def _quantize(node: ir.Node, guard: _Guard) -> None:
    if node.attributes.get_int("block_size", 0):
        _each(node, [0], guard.not_empty)


def _scan(node: ir.Node, guard: _Guard) -> None:
    """What the backend transposes, to have the axis that is scanned first."""
    scanned = node.attributes.get_int("num_scan_inputs", 0)
    axes = node.attributes.get_ints("scan_input_axes", ()) or [0] * scanned
    states = len(node.inputs) - scanned
    moved = [states + index for index, axis in enumerate(axes) if axis != 0]
    _each(node, moved, lambda value: guard.not_empty(value, free=0))
    body = node.attributes["body"].as_graph()
    for index, axis in enumerate(node.attributes.get_ints("scan_output_axes", ())):
        at = states + index
        if axis != 0 and at < len(body.outputs):
            body.outputs[at] = guard.within(body).not_empty(body.outputs[at])


def _stft(node: ir.Node, guard: _Guard) -> None:
    _each(node, [1, 2, 3], guard.not_empty)
    _each(node, [3], guard.not_zero)


def _unique(node: ir.Node, guard: _Guard) -> None:
    if "axis" in node.attributes:
        _not_empty(0, node.attributes.get_int("axis", 0))(node, guard)


def _upsample(node: ir.Node, guard: _Guard) -> None:
    scales = node.inputs[1] if len(node.inputs) > 1 else None
    sizes = guard.proven.sizes(scales) if scales is not None else None
    if sizes and sizes[0] is not None:
        rank = sizes[0]
        _each(node, [0], lambda value: guard.ranked(value, rank))


_RULES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {
        "Attention": _attention,  # without heads, a division by zero
        "Conv": _not_empty(1, 0),  # without channels, no end
        "ConvInteger": _conv_integer,
        "ConvTranspose": _not_empty(0, 0),  # without an extent, a crash
        "DFT": _scalars(1, 2),
        "Div": _divide,
        "Dropout": _scalars(1, 2),
        "Einsum": _einsum,
        "GRU": _not_empty(0),  # an exception in a thread
        "InstanceNormalization": _not_empty(0, 0),  # a mean of nothing, a crash
        "LSTM": _not_empty(0, 0),  # without a batch, the same
        "Loop": _scalars(0, 1),
        "MatMulInteger": _not_empty(1),  # as ConvInteger
        "Mod": _divide,
        "OneHot": _scalars(1),
        "QLinearConv": _scalars(4, 5),
        "QLinearMatMul": _not_empty(3),  # as ConvInteger
        "QuantizeLinear": _quantize,  # a division by the empty axis
        "ReverseSequence": _of_rank(2),
        "STFT": _stft,  # frames of no length, a division by zero
        "Scan": _scan,  # a division by the empty axis
        "SequenceInsert": _scalars(2),
        "Unique": _unique,
        "Upsample": _upsample,
    }
)
