"""Makes a run fail if ONNX Runtime would end the process, never end, or return foreign memory.

Some kernels divide by a size that is 0, read axes that a tensor lacks, or negate the least integer.
Their inputs are not known before a run, so the inputs pass through guard layers first. A guard
layer fails for a value that the kernel does not survive, and changes no other value. If the network
proves that the value is sound, the guard is left out. A shape that the network only declares proves
nothing.

The faults were found by giving ONNX Runtime 1.31 onnx's backend cases with inputs and attributes
that are empty, flat, omitted or at the ends of their ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.backend.inserter import constant
from headrace.plugins.cpu.backend.repairs import REDUCTIONS
from headrace.plugins.cpu.claims import contributed, refusals
from headrace.plugins.cpu.guards import inputs, outputs, products, shapes, windows
from headrace.plugins.cpu.guards.guard_layers import Guard, GuardContext
from headrace.runtime.intake.naming import walk
from headrace.runtime.network.shapes import operators

_NO_SPACE: Final = r"[^\s\x0b\x1c-\x1f\x{85}\pZ]"  # neither Unicode's space nor Python's
_SCAN_WITHOUT_BATCH: Final = 9
_HALVES: Final = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_INTEGERS: Final = (ir.DataType.INT32, ir.DataType.INT64)  # narrower ones are computed in int32


def guard(model: ir.Model) -> GuardContext:
    """Guards every layer of `model`, bodies included, that the backend may not survive, and every
    output that may have too many texts."""
    for node in walk(model.graph):
        _drop_omitted_inputs(node)
    nodes = [node for node in walk(model.graph) if needs_guard(node)]
    network = GuardContext(model)
    quantized = any(node.op_type == "DequantizeLinear" for node in walk(model.graph))
    for made in {value.producer() for value in network.sizes.deep}:
        if made is not None and made.inputs and made.inputs[0] is not None:
            made.replace_input_with(0, Guard(made, network).deep(made.inputs[0]))
    for node in nodes:
        guarded = Guard(node, network)
        operator = operators.operator(node)
        for index, rank in refusals.RANKS.get(operator, {}).items():
            inputs.of_exact_rank(rank, index)(node, guarded)
        if quantized and (rule := _QUANTIZED.get(operator)) is not None:
            rule(node, guarded)
        if (rule := _RULES.get(operator)) is not None:
            rule(node, guarded)
    outputs.guard_texts(model, network)
    return network


def _drop_omitted_inputs(node: ir.Node) -> None:
    """Drops omitted inputs at the end of the list, because some kernels count and read them."""
    given = len(node.inputs)
    while given and node.inputs[given - 1] is None:
        given -= 1
    if given < len(node.inputs):
        node.resize_inputs(given)


def needs_guard(node: ir.Node) -> bool:
    operator = operators.operator(node)
    return operator in _RULES or operator in _QUANTIZED or operator in refusals.RANKS


def _attention(node: ir.Node, guard: Guard) -> None:
    """Guards keys against empty axes, which may mean no heads. Keys of three axes need no guard,
    because the attributes say how many heads they have. Guards earlier keys and values as for
    Concat, to which the backend expands a type that it has no kernel for. They have other axes than
    those that follow them, so only the axis along which they are joined may be empty."""
    for earlier in (4, 5):
        if earlier < len(node.inputs) and node.inputs[earlier] is not None:
            for index in (earlier - 3, earlier):
                inputs.not_empty(index, -2)(node, guard)
    value = node.inputs[1]
    sizes = guard.sizes.of(value) if value is not None else None
    if sizes is None or len(sizes) == 4:
        inputs.not_empty(1, -2)(node, guard)


def _causal_conv(node: ir.Node, guard: Guard) -> None:
    """Guards as for Concat and Conv, to which the backend expands it."""
    inputs.not_empty(1, 0)(node, guard)
    data, earlier = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
    if data is not None and earlier is not None:
        node.replace_input_with(3, guard.alike([data, earlier], -1)[1])


def _concat(node: ir.Node, guard: Guard) -> None:
    """Guards that shapes fit. The backend does not compare a shape with that of an empty tensor: it
    then leaves a part of the output uninitialised, or ends the process."""
    places = range(2, len(node.inputs), 3) if node.domain else range(len(node.inputs))
    values = [value for at in places if (value := node.inputs[at]) is not None]
    if len(values) < len(places):
        return  # `refusals` refuses the layer
    alike = guard.alike(values, node.attributes.get_int("axis", 0))
    for at, value in zip(places, alike, strict=True):
        node.replace_input_with(at, value)


def _concat_quantized(node: ir.Node, guard: Guard) -> None:
    """As for Concat. The backend reads each scale and zero point, even if it is empty."""
    inputs.scalars(*(at for at in range(len(node.inputs)) if at < 2 or at % 3 != 2))(node, guard)
    _concat(node, guard)


def _concat_from_sequence(node: ir.Node, guard: Guard) -> None:
    """Guards as for Concat. If the same graph makes the sequence, guards its tensors before."""
    sequence = node.inputs[0]
    if sequence is None or not isinstance(sequence.type, ir.SequenceType):
        return
    stacks = node.attributes.get_int("new_axis", 0)
    axis = None if stacks else node.attributes.get_int("axis", 0)
    made = sequence.producer()
    if made is None or made.op_type != "SequenceConstruct" or made.graph is not node.graph:
        node.replace_input_with(0, guard.alike_in(sequence, axis))
        return
    parts = [value for value in made.inputs if value is not None]
    alike = guard.alike(parts, axis)
    if alike != parts:
        again = guard.layer("SequenceConstruct", *alike, type=sequence.type)
        node.replace_input_with(0, again)


def _divide(node: ir.Node, guard: Guard) -> None:
    """Avoids division by -1, because the quotient of the least integer does not exist. Computes
    x / -1 as -x / 1, and the remainder by -1 as the remainder by 1."""
    dividend, divisor = node.inputs
    if dividend is None or divisor is None or divisor.dtype not in _INTEGERS:
        return
    tensor = constant(divisor)
    if tensor is not None and not (tensor.numpy() == -1).any():
        return
    number, truth = divisor.dtype.numpy(), ir.TensorType(ir.DataType.BOOL)
    one, minus_one = (guard.constant(np.array(factor, number)) for factor in (1, -1))
    negated = guard.layer("Equal", divisor, minus_one, type=truth)
    is_negated = guard.layer("Cast", negated, type=divisor.type, to=divisor.dtype.value)
    two = guard.layer("Add", is_negated, is_negated)  # 2 where the divisor is -1, or 0
    node.replace_input_with(1, guard.layer("Add", divisor, two))
    if node.op_type == "Div":
        sign = guard.layer("Sub", one, two)
        node.replace_input_with(0, guard.layer("Mul", dividend, sign))


def _features(node: ir.Node, guard: Guard) -> None:
    inputs.each(node, range(len(node.inputs)), guard.not_empty)


def _quantize(node: ir.Node, guard: Guard) -> None:
    if node.attributes.get_int("block_size", 0):
        inputs.each(node, [0], guard.not_empty)


def _range(node: ir.Node, guard: Guard) -> None:
    """Guards that there are three numbers. Of floats of 16 bits, also that there are not more
    results than such floats. The backend has no kernel for them, and makes each result by a turn of
    a loop, for whose results it reserves no memory before."""
    inputs.scalars(0, 1, 2)(node, guard)
    start, limit, delta = node.inputs
    if start is None or limit is None or delta is None or limit.dtype not in _HALVES:
        return
    first, last, step = (guard.cast(each, ir.DataType.FLOAT) for each in (start, limit, delta))
    count = guard.layer("Div", guard.layer("Sub", last, first), step)
    most = guard.constant(np.array(2**16, np.float32))
    few = guard.layer("Less", count, most, type=ir.TensorType(ir.DataType.BOOL))
    node.replace_input_with(1, guard.only_if(limit, few, "range"))


def _recurrent(node: ir.Node, guard: Guard) -> None:
    """If there are no steps, the backend's last states are foreign memory, or 0 instead of the
    first states. An LSTM does not survive an empty batch."""
    has_states = any(output.name for output in node.outputs[1:])
    if node.op_type == "LSTM":
        inputs.not_empty(0, None if has_states else 0)(node, guard)
    elif has_states:
        inputs.not_empty(0, 1)(node, guard)


def _reduce(node: ir.Node, guard: Guard) -> None:
    """If an input has no elements, the backend keeps the size of an axis that is counted from the
    last. `repairs` has already counted axes from the first, where it could."""
    axes = node.attributes.get_ints("axes", ()) or [node.attributes.get_int("axis", 0)]
    if any(axis < 0 for axis in axes):
        inputs.not_empty(0)(node, guard)


def _scan(node: ir.Node, guard: Guard) -> None:
    """Guards the inputs and outputs that the backend transposes to move the scanned axis to the
    front. Before operator set 9, guards against scans without steps: their last states are foreign
    memory."""
    scanned = node.attributes.get_int("num_scan_inputs", 0)
    axes = node.attributes.get_ints("scan_input_axes", ()) or [0] * scanned
    states = len(node.inputs) - scanned
    if guard.opset < _SCAN_WITHOUT_BATCH:
        inputs.each(node, range(states, len(node.inputs)), guard.not_empty)
        return
    moved = [states + index for index, axis in enumerate(axes) if axis != 0]
    inputs.each(node, moved, lambda value: guard.not_empty(value, free=0))
    body = node.attributes["body"].as_graph()
    for index, axis in enumerate(node.attributes.get_ints("scan_output_axes", ())):
        at = states + index
        if axis != 0 and at < len(body.outputs):
            body.outputs[at] = guard.within(body).not_empty(body.outputs[at])


def _squeeze(node: ir.Node, guard: Guard) -> None:
    """Guards against an empty list of axes. The backend treats it like a missing one, and squeezes
    all axes of size 1."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is not None and constant(axes) is None:
        node.replace_input_with(1, guard.long(axes, 0))


def _string_split(node: ir.Node, guard: Guard) -> None:
    """Guards against a scalar, whose count gets an axis, and against white space that the backend
    does not split as ONNX does. Without a delimiter the backend splits at spaces alone, and drops
    them at the end."""
    inputs.of_rank(1)(node, guard)
    texts = node.inputs[0]
    delimiter = node.attributes.get_string("delimiter", "")
    if texts is None or delimiter:
        return
    limited = node.attributes.get_int("maxsplit", -1) >= 0
    expression = rf"(?:{_NO_SPACE}| )*{_NO_SPACE}|" if limited else rf"(?:{_NO_SPACE}| )*"
    truth = ir.TensorType(ir.DataType.BOOL)
    plain = guard.layer("RegexFullMatch", texts, type=truth, pattern=expression)
    node.replace_input_with(0, guard.only_if(texts, plain, "text"))


def _unique(node: ir.Node, guard: Guard) -> None:
    if "axis" in node.attributes:
        inputs.not_empty(0, node.attributes.get_int("axis", 0))(node, guard)


_QUANTIZED: Final[Mapping[str, inputs.Rule]] = MappingProxyType(
    {
        "Conv": inputs.of_rank(3),
        "Gemm": products.quantized,
        "MatMul": products.quantized,
        "Softmax": inputs.not_empty(0),
    }
)
"""Rules in a network that has a DequantizeLinear. The backend may make a QLinearConv, QGemm,
QLinearMatMul or QLinearSoftmax of these layers."""
_CONTRIBUTED: Final[Mapping[str, inputs.Rule]] = {
    f"{contributed.DOMAIN}.{name}": rule
    for name, rule in {
        "DynamicQuantizeLSTM": inputs.not_empty(0),  # an empty sum gives foreign memory
        "FusedConv": inputs.not_empty(1, 0),
        "FusedGemm": products.gemm,
        "FusedMatMul": products.transposed,
        "QLinearConcat": _concat_quantized,
        "QLinearSoftmax": inputs.scalars(0, 1, 2, 3, 4),  # of nothing it gives no result at all
        "SkipLayerNormalization": inputs.not_empty(1),  # it divides by the size
        "SkipSimplifiedLayerNormalization": inputs.not_empty(1),
        "TransposeMatMul": products.transposed,
    }.items()
}
_RULES: Final[Mapping[str, inputs.Rule]] = MappingProxyType(
    {
        **dict.fromkeys(REDUCTIONS, _reduce),
        **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), windows.pool),
        "AffineGrid": windows.affine_grid,
        "Attention": _attention,  # without heads it divides by zero
        "CausalConvWithState": _causal_conv,
        "CenterCropPad": windows.center_crop_pad,
        "Concat": _concat,
        "ConcatFromSequence": _concat_from_sequence,
        "Conv": inputs.not_empty(1, 0),  # without channels it never ends
        "ConvInteger": windows.conv_integer,
        "ConvTranspose": inputs.not_empty(0, 0),  # without an extent it crashes
        "DFT": windows.dft,
        "Div": _divide,
        "Dropout": inputs.scalars(1, 2),
        "Einsum": products.einsum,
        "GRU": inputs.not_empty(0),  # it raises in a thread
        "GatherND": shapes.gather_nd,
        "Gemm": products.gemm,
        "InstanceNormalization": inputs.not_empty(0, 0),  # it crashes on an empty mean
        "LSTM": _recurrent,
        "LayerNormalization": inputs.constants(1, 2),
        "Loop": inputs.scalars(0, 1),
        "MatMul": products.matmul,
        "MatMulInteger": inputs.not_empty(1),  # as ConvInteger
        "MelWeightMatrix": windows.mel_weight_matrix,
        "Mod": _divide,
        "Multinomial": shapes.multinomial,
        "NegativeLogLikelihoodLoss": shapes.loss,
        "NonZero": inputs.of_rank(1),
        "NonMaxSuppression": inputs.scalars(2, 3, 4),
        "OneHot": inputs.scalars(1),
        "QLinearConv": windows.quantized_conv,
        "RMSNormalization": inputs.constants(1),
        "RNN": _recurrent,
        "QLinearMatMul": inputs.not_empty(3),  # as ConvInteger
        "QuantizeLinear": _quantize,  # it divides by the empty axis
        **_CONTRIBUTED,
        "ai.onnx.ml.FeatureVectorizer": _features,  # it divides by the number of columns
        "Reshape": shapes.reshape,
        "Range": _range,
        "ReverseSequence": inputs.of_rank(2),
        "Pad": windows.pad,
        "Resize": windows.resize,
        "RotaryEmbedding": shapes.rotary,
        "STFT": windows.stft,  # for frames of length 0 it divides by zero
        "Scan": _scan,  # it divides by the empty axis
        **dict.fromkeys(("SequenceAt", "SequenceErase"), inputs.scalars(1)),
        "SequenceInsert": inputs.scalars(2),
        "SoftmaxCrossEntropyLoss": shapes.loss,
        "Split": inputs.not_empty(1),  # it treats empty lengths like missing ones
        "SplitToSequence": inputs.not_empty(1),
        "Squeeze": _squeeze,
        "StringSplit": _string_split,
        "Tile": windows.tile,
        "Transpose": products.transpose,
        "Unique": _unique,
        "Upsample": windows.upsample,
    }
)
