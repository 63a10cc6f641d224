"""Adds nodes at the network's ends that convert between the caller's tensors and the network's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from headrace.runtime.errors import InvalidArgument, did_you_mean
from headrace.runtime.intake import naming
from headrace.runtime.intake.provenance import stamp
from headrace.runtime.network.network import LAYOUT
from headrace.runtime.transform.options import InputOptions, OutputOptions

_Sizes: TypeAlias = "tuple[int | None, ...]"

RESIZE_MODES: Final = {"LINEAR": "linear", "NEAREST": "nearest", "CUBIC": "cubic"}


def add_preprocessing(model: ir.Model, options: Mapping[str, InputOptions]) -> None:
    """Changes `model` in place so that it takes inputs as `options` say.

    Raises:
        InvalidArgument: an option does not fit the input. The error's field names the option.
    """
    initializers = model.graph.initializers
    inputs = {
        value.name or "": value for value in model.graph.inputs if value.name not in initializers
    }
    for name, option in options.items():
        end = _End(model, "inputs", name, inputs)
        if option != InputOptions():
            _Input(end, option).apply()


def add_postprocessing(model: ir.Model, options: Mapping[str, OutputOptions]) -> None:
    """Changes `model` in place so that it gives outputs as `options` say. Raises as
    `add_preprocessing`."""
    outputs = {value.name or "": value for value in model.graph.outputs}
    for name, option in options.items():
        end = _End(model, "outputs", name, outputs)
        if option != OutputOptions():
            _give(end, option)


class _End:
    """An input or output of a network, and the nodes that are added before or after it."""

    def __init__(
        self, model: ir.Model, side: str, name: str, known: Mapping[str, ir.Value]
    ) -> None:
        self.model = model
        self.name = name
        self._side = side
        if name not in known:
            kind = "input" if side == "inputs" else "output"
            message = f"the network has no {kind} {name!r}{did_you_mean(name, known)}"
            raise InvalidArgument(message, field=f"{side}[{name!r}]")
        self.value = known[name]
        self.nodes: list[ir.Node] = []
        self._names = naming.value_names(model)

    def error(self, option: str, message: str) -> InvalidArgument:
        return InvalidArgument(message, field=f"{self._side}[{self.name!r}].{option}")

    def check_tensor(self) -> ir.DataType:
        dtype = self.value.dtype
        if not isinstance(self.value.type, ir.TensorType) or dtype is None:
            raise self.error("dtype", f"{self.name!r} is not a tensor, so it takes no options")
        return dtype

    def check_dtype(self, wanted: ir.DataType | None, own: ir.DataType) -> ir.DataType:
        if wanted is None or wanted == own:
            return own
        version = self.opset(7, "dtype")
        for dtype in (wanted, own):
            if not _is_cast(dtype, version):
                message = f"{self.name!r} is {own.name}; {dtype.name} values cannot be converted"
                raise self.error("dtype", message)
        return wanted

    def check_layouts(self, layout: str, network_layout: str) -> tuple[str, str]:
        """Both layouts in upper case. They are empty if neither was given."""
        layouts = ((layout or network_layout).upper(), (network_layout or layout).upper())
        shape = self.value.shape
        for option, text in zip(("layout", "network_layout"), layouts, strict=True):
            if text and (not text.isascii() or not text.isalpha() or len(set(text)) != len(text)):
                raise self.error(option, f"{text!r} has to be one letter for each axis, as 'NHWC'")
            if text and (shape is None or len(shape) != len(text)):
                rank = "an unknown rank" if shape is None else f"rank {len(shape)}"
                raise self.error(option, f"{text!r} does not fit {self.name!r} of {rank}")
        if set(layouts[0]) != set(layouts[1]):
            message = f"{layouts[0]!r} is not a permutation of the network's {layouts[1]!r}"
            raise self.error("layout", message)
        return layouts

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType | None,
        shape: ir.Shape | None,
        **attributes: int | str | Sequence[int],
    ) -> ir.Value:
        name = self._names.fresh(f"{self.name}/{op_type.lower()}")
        output = ir.Value(name=name, type=ir.TensorType(dtype) if dtype else None, shape=shape)
        node = ir.node(op_type, inputs, attributes, outputs=[output], name=name)
        stamp(node, ())  # no layer of the network as it was loaded
        self.nodes.append(node)
        return output

    def constant(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ir.Value:
        name = self._names.fresh(f"{self.name}/constant")
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.Tensor(array, name=name),
        )
        self.model.graph.register_initializer(value)
        return value

    def transpose(self, value: ir.Value, source: str, target: str) -> ir.Value:
        if source == target:
            return value
        order = [source.index(axis) for axis in target]
        shape = None if value.shape is None else ir.Shape([value.shape[at] for at in order])
        return self.node("Transpose", [value], value.dtype, shape, perm=order)

    def reshape(self, value: ir.Value, source: _Sizes | None, target: _Sizes | None) -> ir.Value:
        """The elements of `value`, whose shape is `source`, in the shape `target`.

        Raises:
            InvalidArgument: the shapes do not tell which size is which.
        """
        if source is None or target is None:
            raise self.error("shape", f"the network does not tell the shape of {self.name!r}")
        batch = source[:1] == target[:1] == (None,)  # the first axis stays what it is
        wanted = [0 if batch and not at else size for at, size in enumerate(target)]
        known = [math.prod(size or 1 for size in shape) for shape in (source, target)]
        free = [shape[batch:].count(None) for shape in (source, target)]
        if max(free) > 1 or 0 in wanted[batch:] or (free == [0, 0] and known[0] != known[1]):
            told = [[-1 if size is None else size for size in shape] for shape in (source, target)]
            raise self.error("shape", f"{told[0]} cannot become {told[1]}: the sizes do not fit")
        sizes = self.constant(np.array([-1 if each is None else each for each in wanted], np.int64))
        return self.node("Reshape", [value, sizes], value.dtype, ir.Shape(target))

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if value.dtype == dtype:
            return value
        return self.node("Cast", [value], dtype, value.shape, to=dtype.value)

    def opset(self, least: int, option: str) -> int:
        """The version of ONNX's own operators that the model uses."""
        newest = onnx.defs.onnx_opset_version()
        version = self.model.opset_imports.setdefault("", newest)
        if version < least:
            message = f"needs opset {least}, but the network uses {version}; export it again"
            raise self.error(option, message)
        return version


def _is_cast(dtype: ir.DataType, version: int) -> bool:
    """Whether numbers of the type can be converted. ONNX's Cast also converts text to numbers."""
    taken = onnx.defs.get_schema("Cast", version).type_constraints[0].allowed_type_strs
    return dtype != ir.DataType.STRING and f"tensor({dtype.name.lower()})" in taken


class _Input:
    def __init__(self, end: _End, options: InputOptions) -> None:
        self._end = end
        self._options = options
        self._dtype = end.check_tensor()
        self._sent = end.check_dtype(options.dtype, self._dtype)
        self._layout, self._own = end.check_layouts(options.layout, options.network_layout)
        if end.value.is_graph_output():
            raise end.error("dtype", f"{end.name!r} is an output too, so it takes no options")
        if options.shape is not None and (self._layout or options.resize):
            raise end.error("shape", "goes with no layout and no resize")
        if options.resize and options.resize not in RESIZE_MODES:
            modes = ", ".join(RESIZE_MODES)
            raise end.error("resize", f"{options.resize!r} is not one of {modes}")

    def apply(self) -> None:
        end, options = self._end, self._options
        own = end.value
        sent = ir.Value(
            name=end.name,
            type=ir.TensorType(self._sent),
            shape=self._sent_shape(),
            metadata_props={**own.metadata_props, LAYOUT: self._layout},
        )
        end.opset(7, "dtype")
        value = end.transpose(sent, self._layout, self._own)
        if options.shape is not None:
            value = end.reshape(value, options.shape, _sizes(own.shape))
        if options.resize not in ("", "NEAREST") or options.mean or options.scale:
            if not self._dtype.is_floating_point():
                message = f"the network's {end.name!r} is {self._dtype.name}, not floating point"
                option = "mean" if options.mean else "scale" if options.scale else "resize"
                raise end.error(option, message)
            value = end.cast(value, ir.DataType.FLOAT)
        if options.resize:
            value = self._resize(value)
        if options.mean:
            mean = self._by_channel("mean", options.mean)
            value = end.node("Sub", [value, mean], value.dtype, value.shape)
        if options.scale:
            scale = self._by_channel("scale", options.scale)
            value = end.node("Div", [value, scale], value.dtype, value.shape)
        value = end.cast(value, self._dtype)
        graph = end.model.graph
        own.replace_all_uses_with(value if end.nodes else sent)
        graph.inputs[list(graph.inputs).index(own)] = sent
        if len(graph):
            graph.insert_before(graph[0], end.nodes)
        else:
            graph.extend(end.nodes)

    def _sent_shape(self) -> ir.Shape | None:
        shape = self._end.value.shape
        if self._options.shape is not None:
            return ir.Shape(self._options.shape)
        if shape is None or not self._own:
            return shape
        sizes = dict(zip(self._own, shape, strict=True))
        if self._options.resize:
            sizes |= {axis: ir.SymbolicDim(None) for axis in "HW" if axis in sizes}
        return ir.Shape([sizes[axis] for axis in self._layout])

    def _resize(self, value: ir.Value) -> ir.Value:
        end = self._end
        version = end.opset(11, "resize")
        shape = end.value.shape
        if shape is None or not {"H", "W"} <= set(self._own):
            raise end.error("resize", "needs a layout that says which axes are H and W")
        fixed = {self._own.index(axis): shape[self._own.index(axis)] for axis in "HW"}
        if not all(isinstance(size, int) and size > 0 for size in fixed.values()):
            raise end.error("resize", f"the network's {end.name!r} has no fixed height and width")
        wanted = [fixed.get(at, 0) for at in range(len(shape))]
        wanted_sizes = end.constant(np.array(wanted, np.int64))
        is_fixed = end.constant(np.array([at in fixed for at in range(len(shape))]))
        rank = ir.Shape([len(shape)])
        sent_sizes = end.node("Shape", [value], ir.DataType.INT64, rank)
        sizes = end.node("Where", [is_fixed, wanted_sizes, sent_sizes], ir.DataType.INT64, rank)
        # Up to opset 12 Resize needs the unused inputs for regions and scales, although empty.
        unused = end.constant(np.empty(0, np.float32)) if version < 13 else None
        attributes = {
            "mode": RESIZE_MODES[self._options.resize],
            "coordinate_transformation_mode": "half_pixel",
            "nearest_mode": "round_prefer_floor",
        }
        inputs = [value, unused, unused, sizes]
        return end.node("Resize", inputs, value.dtype, shape.copy(), **attributes)

    def _by_channel(self, option: str, values: tuple[float, ...]) -> ir.Value:
        """`values` as a constant that broadcasts over the network's layout."""
        end = self._end
        if not all(map(math.isfinite, values)) or (option == "scale" and 0.0 in values):
            raise end.error(option, f"{list(values)} must be finite, and a scale not zero")
        array = np.array(values, np.float32)
        if len(values) == 1:
            return end.constant(array.reshape(()))
        if end.value.shape is None or "C" not in self._own:
            raise end.error(option, "a value for each channel needs a layout that says which is C")
        at = self._own.index("C")
        channels = end.value.shape[at]
        if isinstance(channels, int) and channels != len(values):
            raise end.error(option, f"{len(values)} values for {channels} channels")
        return end.constant(array.reshape([-1] + [1] * (len(self._own) - at - 1)))


def _sizes(shape: ir.Shape | None) -> _Sizes | None:
    if shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in shape)


def _give(end: _End, options: OutputOptions) -> None:
    own = end.check_tensor()
    dtype = end.check_dtype(options.dtype, own)
    layout, network_layout = end.check_layouts(options.layout, options.network_layout)
    if options.shape is not None and layout:
        raise end.error("shape", "goes with no layout")
    graph = end.model.graph
    value = end.transpose(end.value, network_layout, layout)
    if options.shape is not None:
        value = end.reshape(value, _sizes(value.shape), options.shape)
    value = end.cast(value, dtype)
    if end.nodes:
        end.opset(7, "dtype")
        if end.value.is_graph_input() or end.value.is_initializer():
            raise end.error(
                "dtype", f"{end.name!r} is not the result of a layer, so it takes no options"
            )
        graph.outputs[list(graph.outputs).index(end.value)] = value
        value.metadata_props.update(end.value.metadata_props)
        end.value.name = naming.value_names(end.model).fresh(f"{end.name}/own")
        value.name = end.name
        graph.extend(end.nodes)
    if layout:
        value.metadata_props[LAYOUT] = layout
