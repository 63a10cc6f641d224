"""Guards of layers that read windows of images and signals, or resize them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.backend.inserter import constant
from headrace.plugins.cpu.guards import inputs
from headrace.plugins.cpu.guards.guard_layers import END, Guard
from headrace.runtime.network.shapes.formulas import Term
from headrace.runtime.network.shapes.ledger import AT_LEAST


def affine_grid(node: ir.Node, guard: Guard) -> None:
    """Guards that aligned corners are two pixels of each axis. Of one pixel, the backend says that
    it lies at 1. ONNX's definitions say -1, or none."""
    if not node.attributes.get_int("align_corners", 0) or node.inputs[1] is None:
        return
    sizes = node.inputs[1]
    known = constant(sizes)
    if known is not None and (known.numpy().ravel()[2:] != 1).all():
        return
    one, truth = guard.constant(np.array(1)), ir.TensorType(ir.DataType.BOOL)
    single = guard.layer("Equal", guard.slice(sizes, 2, END), one, type=truth)
    apart = guard.layer("Not", single)
    node.replace_input_with(1, guard.only_if(sizes, apart, "corner"))


def center_crop_pad(node: ir.Node, guard: Guard) -> None:
    """Guards that each axis has a size, and that none is negative. The backend takes a single size
    for all axes."""
    data, sizes = node.inputs[:2]
    if data is None or sizes is None:
        return
    sizes = guard.at_least(sizes, 0)
    axes = node.attributes.get_ints("axes", None)
    if axes is not None:
        count = guard.constant(np.array([len(axes)]))
    else:
        count = guard.layer("Shape", guard.layer("Shape", data))
    node.replace_input_with(1, guard.layer("Reshape", sizes, count, type=sizes.type))


def conv_integer(node: ir.Node, guard: Guard) -> None:
    inputs.of_rank(3)(node, guard)
    inputs.not_empty(1, 0)(node, guard)  # an empty sum gives foreign memory


def dft(node: ir.Node, guard: Guard) -> None:
    inputs.of_rank(2)(node, guard)
    inputs.scalars(1, 2)(node, guard)


def pad(node: ir.Node, guard: Guard) -> None:
    _complete(node, guard, 1, node.inputs[3] if len(node.inputs) > 3 else None, twice=True)


def pool(node: ir.Node, guard: Guard) -> None:
    """Guards that no window is larger than the padded input. The backend rounds a negative number
    of steps towards 0. If the window is larger by less than a stride, it makes one result of what
    is there, as ONNX's inference of shapes has it. Then the window may be larger, unless it has
    gaps, or counts padding, which ends before the window does."""
    kernel = np.array(node.attributes.get_ints("kernel_shape", ()), np.int64)
    strides = np.array(node.attributes.get_ints("strides", ()) or [1] * kernel.size, np.int64)
    pads = np.array(node.attributes.get_ints("pads", ()) or [0] * 2 * kernel.size, np.int64)
    dilations = node.attributes.get_ints("dilations", ()) or [1] * kernel.size
    data = node.inputs[0]
    rounded_up = node.attributes.get_int("ceil_mode", 0)
    same = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    if data is None or rounded_up or same or max(strides, default=1) == 1:
        return
    if pads.size != 2 * kernel.size or not len(dilations) == strides.size == kernel.size:
        return  # the backend refuses the layer
    least = (kernel - 1) * np.array(dilations) + 1 - pads[: kernel.size] - pads[kernel.size :]
    if set(dilations) == {1} and not node.attributes.get_int("count_include_pad", 0):
        least = np.maximum(least - (strides - 1), np.minimum(least, 1))
    sizes = guard.sizes.of(data)
    if sizes is not None and len(sizes) == kernel.size + 2:
        pairs = zip(sizes[2:], least.tolist(), strict=True)
        if guard.judged("window", *((AT_LEAST, *pair) for pair in pairs)):
            return
    given = guard.slice(guard.layer("Shape", data), 2, END)
    # Before operator set 9, Less does not take integers.
    wide, limit = guard.cast(given, ir.DataType.DOUBLE), guard.constant(least.astype(np.float64))
    short = guard.layer("Less", wide, limit, type=ir.TensorType(ir.DataType.BOOL))
    fits = guard.layer("Not", short)
    node.replace_input_with(0, guard.only_if(data, fits, "window"))


def quantized_conv(node: ir.Node, guard: Guard) -> None:
    inputs.of_rank(3)(node, guard)
    inputs.scalars(4, 5)(node, guard)
    inputs.not_empty(3, 0)(node, guard)  # as ConvInteger


def resize(node: ir.Node, guard: Guard) -> None:
    """Guards that the input has an axis for each scale or size. Guards that a cropped axis gets
    another size. The backend does not crop an axis whose size stays the same."""
    _has_an_axis_for_each(node, guard, *((1,) if len(node.inputs) == 2 else (2, 3)))
    numbers = node.attributes.get_ints("axes", None)
    axes = guard.constant(np.array(numbers)) if numbers is not None else None
    mode = node.attributes.get_string("coordinate_transformation_mode", "")
    if mode == "tf_crop_and_resize":
        _complete(node, guard, 1, axes, twice=True)
    lists = [at for at, value in enumerate(node.inputs) if at and value is not None]
    _complete(node, guard, max(lists, default=END), axes)
    given = [*node.inputs, None, None, None]
    data, region, wanted = given[0], given[1], given[3] or given[2]
    if mode != "tf_crop_and_resize" or data is None or region is None or wanted is None:
        return
    truth = ir.TensorType(ir.DataType.BOOL)
    shape = guard.layer("Shape", data)
    if axes is not None:
        shape = guard.layer("Gather", shape, axes)
    ends = guard.layer("Reshape", region, guard.constant(np.array([2, -1])))
    ends = guard.cast(ends, ir.DataType.FLOAT)
    bounds = guard.constant(np.array([[0], [1]], np.float32))
    cut = guard.layer("Not", guard.layer("Equal", ends, bounds, type=truth))
    number = guard.over("ReduceSum", guard.cast(cut, ir.DataType.INT64), [0], keepdims=0)
    whole = guard.layer("Equal", number, guard.constant(np.array(0)), type=truth)
    single = guard.layer("Equal", shape, guard.constant(np.array(1)), type=truth)
    sound = guard.layer("Or", whole, single)
    if node.attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch":
        own = shape if given[3] is not None else guard.constant(np.array(1, np.float32))
        resized = guard.layer("Not", guard.layer("Equal", wanted, own, type=truth))
        sound = guard.layer("Or", sound, resized)
    node.replace_input_with(0, guard.only_if(data, sound, "crop"))


def stft(node: ir.Node, guard: Guard) -> None:
    inputs.of_rank(2)(node, guard)
    inputs.each(node, [1, 2, 3], guard.not_empty)
    inputs.each(node, [3], guard.not_zero)


def tile(node: ir.Node, guard: Guard) -> None:
    _complete(node, guard, 1, None)


def upsample(node: ir.Node, guard: Guard) -> None:
    _has_an_axis_for_each(node, guard, 1)


def _complete(
    node: ir.Node, guard: Guard, index: int, axes: ir.Value | None, twice: bool = False
) -> None:
    """Guards that a list has one element, or two, for each of `axes`, or for each axis of the data
    if they are None. While the backend moves a Transpose behind the layer, it takes the first
    elements of a longer list."""
    data, numbers = node.inputs[0], node.inputs[index] if index < len(node.inputs) else None
    if data is None or numbers is None or constant(numbers) is not None:
        return
    length = (guard.sizes.of(numbers) or (None,))[0]
    if isinstance(length, Term):
        length = None
    if length is not None and axes is None and not (twice and length % 2):
        inputs.of_exact_rank(length // 2 if twice else length)(node, guard)
        return
    if length is not None and axes is not None:
        return  # the backend looks at it while it loads the network
    count = guard.layer("Shape", guard.layer("Shape", data) if axes is None else axes)
    if twice:
        count = guard.layer("Add", count, count)
    truth = ir.TensorType(ir.DataType.BOOL)
    complete = guard.layer("Equal", guard.layer("Shape", numbers), count, type=truth)
    node.replace_input_with(index, guard.only_if(numbers, complete, "shape"))


def _has_an_axis_for_each(node: ir.Node, guard: Guard, *lists: int) -> None:
    """Guards that the first input has an axis for each element of the others. The backend does not
    look at constants again in a run, and does not survive too few or too many of them."""
    if "axes" in node.attributes:
        return  # `refusals` looks at it
    for index in lists:
        given = node.inputs[index] if index < len(node.inputs) else None
        sizes = guard.sizes.of(given) if given is not None else None
        if sizes and isinstance(sizes[0], int) and sizes[0]:
            inputs.of_exact_rank(sizes[0])(node, guard)


def mel_weight_matrix(node: ir.Node, guard: Guard) -> None:
    """The backend rounds half of a negative length towards 0, and ONNX rounds it down."""
    inputs.each(node, [1], lambda length: guard.at_least(length, 0))
