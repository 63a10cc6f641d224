"""Rules that guard inputs whose shapes must fit each other."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.backend.inserter import constant
from headrace.plugins.cpu.claims.rotary import rotary_elements
from headrace.plugins.cpu.claims.samples import most_rows
from headrace.plugins.cpu.guards import inputs
from headrace.plugins.cpu.guards.guard_layers import END, Guard
from headrace.runtime.network.shapes.ledger import EQUAL
from headrace.runtime.network.shapes.operators import Shape


def gather_nd(node: ir.Node, guard: Guard) -> None:
    """Guards that the data and the indices have the same batches, and an axis after them. The
    backend repeats the data's batches for as many times more batches of indices, and takes the last
    axis of the indices for a batch too."""
    count = node.attributes.get_int("batch_dims", 0)
    if count < 1 or None in node.inputs[:2]:
        return
    for index in range(2):
        inputs.of_rank(count + 1, index)(node, guard)
    data, indices = node.inputs[:2]
    if data is None or indices is None:
        return
    known = [guard.sizes.of(value) for value in (data, indices)]
    one, other = ((shape or ())[:count] for shape in known)
    if len(one) == len(other) == count:
        pairs = zip(one, other, strict=True)
        if guard.judged("shape", *((EQUAL, *pair) for pair in pairs)):
            return
    sizes = [guard.slice(guard.layer("Shape", value), 0, count) for value in (data, indices)]
    alike = guard.layer("Equal", *sizes, type=ir.TensorType(ir.DataType.BOOL))
    node.replace_input_with(1, guard.only_if(indices, alike, "shape"))


def loss(node: ir.Node, guard: Guard) -> None:
    """Guards that each row of scores, and each place in it, has a class, that none is negative
    except `ignore_index`, and that each class has one weight. The backend accepts fewer classes and
    more weights, and counts from the last."""
    scores, classes = node.inputs[:2]
    if scores is None or classes is None:
        return
    sizes = guard.layer("Shape", scores)
    places = guard.slice(sizes, 0, 1), guard.slice(sizes, 2, END)
    wanted, given = guard.layer("Concat", *places, axis=0), guard.layer("Shape", classes)
    truth = ir.TensorType(ir.DataType.BOOL)
    weights = node.inputs[2] if len(node.inputs) > 2 else None
    if weights is not None:
        count = guard.layer("Shape", weights)
        complete = guard.layer("Equal", count, guard.slice(sizes, 1, 2), type=truth)
        node.replace_input_with(2, guard.only_if(weights, complete, "shape"))
    alike = guard.layer("Equal", given, wanted, type=truth)
    classes = guard.only_if(classes, alike, "shape")
    if classes.dtype is not None:  # otherwise the backend refuses the layer
        ignored = node.attributes.get_int("ignore_index", 0)
        numbers = (np.array(label, classes.dtype.numpy()) for label in (-1, ignored))
        least, left_out = map(guard.constant, numbers)
        known = guard.layer("Greater", classes, least, type=truth)
        omitted = guard.layer("Equal", classes, left_out, type=truth)
        allowed = guard.layer("Or", known, omitted, type=truth)
        classes = guard.only_if(classes, allowed, "class")
    node.replace_input_with(1, classes)


def multinomial(node: ir.Node, guard: Guard) -> None:
    """Guards that the rows are not so many that drawing samples of them would hardly end."""
    most = most_rows(node)
    inputs.each(node, [0], lambda value: guard.few(value, 0, most))


def reshape(node: ir.Node, guard: Guard) -> None:
    """Keeps apart what makes a shape of values and of sizes. The backend otherwise drops a value
    beside sizes, and takes for the axis what is left."""
    shape = node.inputs[1] if len(node.inputs) > 1 else None
    made = shape.producer() if shape is not None else None
    if shape is None or made is None or made.op_type != "Concat":
        return
    if not all(value is None or _is_of_sizes(value) for value in made.inputs):
        flat = guard.constant(np.array([-1]))
        node.replace_input_with(1, guard.layer("Reshape", shape, flat, shape=shape.shape))


def rotary(node: ir.Node, guard: Guard) -> None:
    """Guards that each head has as many elements as the cosines turn, which is an even number. The
    backend leaves the last one of an odd number as it finds it in memory. In a tensor of three axes
    the last axis has all heads."""
    data, cosines = node.inputs[:2]
    if data is None or cosines is None:
        return
    known = _numbers(guard.sizes.of(data))
    if rotary_elements(node, known) is not None:  # `refusals` refuses odd ones
        return
    last = guard.slice(guard.layer("Shape", data), -1, END)
    turned = guard.slice(guard.layer("Shape", cosines), -1, END)
    truth = ir.TensorType(ir.DataType.BOOL)
    wanted = (
        guard.layer("Mul", turned, guard.constant(np.array([2 * heads])))
        for heads in {1, max(node.attributes.get_int("num_heads", 0), 1)}
    )
    alike = [guard.layer("Equal", last, width, type=truth) for width in wanted]
    even = alike[0] if len(alike) == 1 else guard.layer("Or", *alike, type=truth)
    node.replace_input_with(0, guard.only_if(data, even, "rotary"))


def _numbers(shape: Shape | None) -> list[int | None] | None:
    if shape is None:
        return None
    return [size if isinstance(size, int) else None for size in shape]


def _is_of_sizes(value: ir.Value) -> bool:
    """Whether the value is computed from constants and from sizes of tensors alone."""
    seen, waiting = {value}, [value]
    while waiting:
        each = waiting.pop()
        if constant(each) is not None:
            continue
        made = each.producer()
        if made is None:
            return False
        if made.op_type not in ("Shape", "Size"):
            new = {taken for taken in made.inputs if taken is not None} - seen
            seen |= new
            waiting += new
    return True
