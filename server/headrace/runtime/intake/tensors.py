"""Checks that each tensor of a model from outside has the data that it declares, and finds the
data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.external import SPOOLED_BYTES, ExternalFiles
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.naming import graphs, walk
from headrace.runtime.intake.numbers import DATA_FIELDS, count_numbers, decode_integers, field_of
from headrace.runtime.intake.onnx_bytes import refer
from headrace.runtime.intake.sparse import dense
from headrace.runtime.intake.stripping import Ranges, TensorSpan
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.system.mapped_files import MappedFiles

_OWN: Final = "\0own "
"""Locations that begin so stand for the bytes of the model itself and its decoded numbers. No
file can have these names."""


class TensorData:
    """The bytes that a model's tensors refer to: the model's own, and files beside it.

    Args:
        data: the serialised model.
        ranges: where in `data` the raw data is, for each token of the parsed model.
        mapped: collects the files that are mapped.
        external: the files that external data lies in.

    Attributes:
        texts: the number of texts in the tensors so far.
    """

    def __init__(
        self,
        data: Buffer,
        ranges: Ranges,
        limits: Limits,
        mapped: MappedFiles,
        external: ExternalFiles,
    ) -> None:
        self._ranges = ranges
        self._limits = limits
        self._mapped = mapped
        self._external = external
        self._own: list[Buffer] = [data]
        self._count = 0
        self._bytes = 0
        self.texts = 0
        self._external_bytes = 0
        self._dense_bytes = 0

    def check(self, proto: onnx.TensorProto, what: str) -> None:
        """Checks that the tensor `what` holds exactly the elements that its shape declares.

        Raises:
            InvalidModel: it does not, or the tensor makes the model exceed its limits.
        """
        self._count += 1
        if self._count > self._limits.tensors:
            raise _invalid(f"the model has more than {self._limits.tensors} tensors")
        try:
            dtype = ir.DataType(proto.data_type)
        except ValueError:
            raise _invalid(f"{what} has the unknown data type {proto.data_type}") from None
        if dtype == ir.DataType.UNDEFINED:
            raise _invalid(f"{what} has no data type")
        if len(proto.dims) > self._limits.rank:
            raise _invalid(
                f"{what} has {len(proto.dims)} axes; at most {self._limits.rank} are supported"
            )
        elements = 1
        for size in proto.dims:
            if size < 0:
                raise _invalid(f"{what} has the negative dimension {size}")
            elements *= size
        if proto.HasField("segment"):
            raise _invalid(f"{what} is in segments, which are not supported; store it in one piece")
        if elements > self._limits.tensor_bytes:
            raise _invalid(f"{what} declares {elements} elements, which is too many")
        size_bytes = elements * 8 if dtype.is_string() else (elements * dtype.bitwidth + 7) // 8
        self._bytes += size_bytes
        self.texts += elements if dtype.is_string() else 0
        if self._bytes > self._limits.tensor_bytes:
            raise _invalid(f"the tensors take more than {self._limits.tensor_bytes} bytes")
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            self._check_external(proto, dtype, size_bytes, what)
        else:
            self._check_inline(proto, dtype, elements, size_bytes, what)

    def dense(self, sparse: onnx.SparseTensorProto, what: str) -> onnx.TensorProto:
        """A dense tensor with the elements of the sparse tensor `what`.

        Raises:
            InvalidModel: the sparse tensor is wrong, or the model exceeds its limits.
        """
        values, indices = (self._row_of(part, what) for part in (sparse.values, sparse.indices))
        sizes = tuple(sparse.dims)
        made = onnx.TensorProto(
            name=sparse.values.name, data_type=sparse.values.data_type, dims=sizes
        )
        if values.ndim != 1 or not sizes or min(sizes) < 1 or len(sizes) > self._limits.rank:
            raise _invalid(f"the sparse {what} has no list of values, or no size of an axis")
        size = prod(sizes) * values.itemsize
        self._dense_bytes += size
        if self._dense_bytes > self._limits.structure_bytes:
            raise _invalid(
                f"the sparse tensors take more than {self._limits.structure_bytes} bytes once they "
                "are dense; use fewer"
            )
        self._bytes += size
        try:
            row = dense(values, indices, sizes)
        except ValueError as error:
            raise _invalid(f"the sparse {what} has {error}") from None
        refer(made, f"{_OWN}{len(self._own)}", 0, size)
        self._own.append(memoryview(row.view(np.uint8)))
        return made

    def _row_of(self, proto: onnx.TensorProto, what: str) -> Any:
        """The elements of a part of a sparse tensor."""
        self.check(proto, f"the sparse {what}")
        dtype = ir.DataType(proto.data_type)
        entries = {entry.key: entry.value for entry in proto.external_data}
        own = entries.get("location", "").startswith(_OWN)
        is_external = proto.data_location == onnx.TensorProto.EXTERNAL and not own
        if dtype.is_string() or dtype.bitwidth < 8 or is_external:
            raise _invalid(
                f"the sparse {what} has texts, elements below 8 bits or external data; store it "
                "dense"
            )
        if not own:
            return onnx.numpy_helper.to_array(proto)
        start, length = int(entries["offset"]), int(entries["length"])
        source = memoryview(self._own[int(entries["location"].removeprefix(_OWN))])
        row = np.frombuffer(source[start : start + length], dtype.numpy().newbyteorder("<"))
        return row.reshape(tuple(proto.dims))

    def _check_inline(
        self, proto: onnx.TensorProto, dtype: ir.DataType, elements: int, size: int, what: str
    ) -> None:
        place = self._ranges.get(proto.raw_data)
        if place is not None and place.field != "raw_data":
            proto.ClearField("raw_data")
        if proto.HasField("raw_data"):
            if dtype.is_string():
                raise _invalid(f"{what} keeps strings as raw data; store them in string_data")
            length = place.length if place else len(proto.raw_data)
            expected, unit = size, "bytes"
        else:
            field = field_of(dtype)
            if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
                expected = 2 * elements
            elif not dtype.is_string() and dtype.bitwidth in (2, 4):
                expected = size
            else:
                expected = elements
            length, unit = len(getattr(proto, field)), f"elements of {field}"
            if place is not None and place.field == field:
                if length:
                    raise _invalid(f"{what} has {field} in several pieces; store it as raw data")
                length = count_numbers(self._view(place), field)
        if length != expected:
            if proto.external_data:
                raise _invalid(f"{what} has external data, but its data_location is not EXTERNAL")
            raise _invalid(
                f"{what} is {dtype.name}{list(proto.dims)} and needs {expected} {unit}, but "
                f"has {length}"
            )
        _check_one_field(proto, "raw_data" if unit == "bytes" else field_of(dtype), what)
        del proto.external_data[:]  # data_location says to ignore it
        if place is not None:
            self._refer(proto, dtype, place)

    def _refer(self, proto: onnx.TensorProto, dtype: ir.DataType, place: TensorSpan) -> None:
        """Makes the tensor refer to its data, after decoding the data if it is not raw."""
        for field in ("raw_data", place.field):
            proto.ClearField(field)
        if place.field in ("raw_data", "float_data", "double_data"):
            refer(proto, f"{_OWN}0", place.start, place.length)
        else:
            try:
                decoded = decode_integers(self._view(place), dtype)
            except ValueError as error:
                raise _invalid(f"{place.field} of {proto.name!r}: {error}") from None
            refer(proto, f"{_OWN}{len(self._own)}", 0, len(decoded))
            self._own.append(decoded)

    def _view(self, place: TensorSpan) -> memoryview:
        return memoryview(self._own[0])[place.start : place.start + place.length]

    def _check_external(
        self, proto: onnx.TensorProto, dtype: ir.DataType, size: int, what: str
    ) -> None:
        if proto.HasField("raw_data") or dtype.is_string():
            raise _invalid(f"{what} cannot be external: it has data inline, or holds strings")
        location, offset, length = _place(proto, size, what)
        self._external_bytes += size
        if length != size:
            raise _invalid(
                f"{what} is {dtype.name}{list(proto.dims)} and needs {size} bytes, but has {length}"
            )
        available = len(self._external.find(location, what))
        if offset + length > available:
            raise _invalid(
                f"{what} lies at bytes {offset} to {offset + length} of {location!r}, which has "
                f"{available}"
            )
        if self._external_bytes > self._external.most_bytes:
            raise _invalid(
                f"the tensors in external files take more than {self._external.most_bytes} bytes"
            )

    def attach(self, model: ir.Model, *, spooled: bool = False) -> None:
        """Gives each external tensor of the checked `model` its place in memory, and takes the
        others out of the message, which they would keep, and in which they are slow to read.

        Args:
            spooled: moves weights that came as bytes to a file if they are large.
        """
        held = list(_tensors(model))
        external = {
            id(tensor): tensor for tensor, _ in held if isinstance(tensor, ir.ExternalTensor)
        }
        if spooled:
            self._external.spool(self._mapped)
        places = {at: self._place_of(tensor) for at, tensor in external.items()}
        own = [at for at, tensor in external.items() if str(tensor.location).startswith(_OWN)]
        if spooled and sum(len(places[key]) for key in own) >= SPOOLED_BYTES:
            moved = self._mapped.spool([places[key] for key in own])
            places.update(zip(own, moved, strict=True))
        made = {at: _tensor(tensor, places[at]) for at, tensor in external.items()}
        for tensor, put in held:
            if id(tensor) not in made:
                made[id(tensor)] = _without_message(tensor)
            put(made[id(tensor)])

    def _place_of(self, external: ir.ExternalTensor) -> memoryview:
        start = external.offset or 0
        location = str(external.location)
        if location.startswith(_OWN):
            source = memoryview(self._own[int(location.removeprefix(_OWN))])
        else:
            source = self._external.find(location, external.name or "")
        return source[start : start + int(external.nbytes)]


def _tensors(
    model: ir.Model,
) -> Iterator[tuple[ir.TensorProtocol, Callable[[ir.TensorProtocol], None]]]:
    """All tensors, each with what puts another into its place."""
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value, partial(setattr, value, "const_value")
    for node in (node for scope in scopes for node in walk(scope)):
        for name, attribute in list(node.attributes.data.items()):
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                yield attribute.value, partial(_put, node, name)
            elif attribute.type == ir.AttributeType.TENSORS:
                for at, tensor in enumerate(attribute.value):
                    yield tensor, partial(_put_among, node, name, at)


def _put(node: ir.Node, name: str, tensor: ir.TensorProtocol) -> None:
    node.attributes[name] = ir.Attr(name, ir.AttributeType.TENSOR, tensor)


def _put_among(node: ir.Node, name: str, at: int, tensor: ir.TensorProtocol) -> None:
    tensors = [*node.attributes[name].value]
    tensors[at] = tensor
    node.attributes[name] = ir.Attr(name, ir.AttributeType.TENSORS, tensors)


def _tensor(external: ir.ExternalTensor, view: memoryview) -> ir.TensorProtocol:
    dtype = external.dtype
    if dtype.bitwidth < 8:
        return ir.PackedTensor(
            np.frombuffer(view, np.uint8), dtype, shape=external.shape, name=external.name
        )
    array = np.frombuffer(view, dtype.numpy().newbyteorder("<"))
    return ir.Tensor(
        array.reshape(external.shape.numpy()),
        dtype=dtype,
        shape=external.shape,
        name=external.name,
    )


def _without_message(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor with memory of its own. Texts and packed elements stay as they are."""
    dtype = tensor.dtype
    if not isinstance(tensor, ir.TensorProtoTensor) or dtype.is_string() or dtype.bitwidth < 8:
        return tensor
    array = tensor.numpy()
    return ir.Tensor(array, dtype=dtype, shape=tensor.shape, name=tensor.name)


def _check_one_field(proto: onnx.TensorProto, used: str, what: str) -> None:
    """Refuses data in another field than the one that holds the elements, because onnx-ir does not
    take it."""
    for field in DATA_FIELDS:
        if field != used and len(getattr(proto, field)):
            raise _invalid(f"{what} has its elements in {used}, but also data in {field}; clear it")


def _place(proto: onnx.TensorProto, size: int, what: str) -> tuple[str, int, int]:
    """The location, offset and length of external data."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    if len(entries) != len(proto.external_data) or "location" not in entries:
        raise _invalid(f"{what} must have just one location of its external data")
    unknown = entries.keys() - {"location", "offset", "length", "checksum", "basepath"}
    if unknown:
        raise _invalid(f"{what} has the unknown external data keys {sorted(unknown)[:3]}")
    numbers = [entries.get("offset", "0"), entries.get("length", str(size))]
    with suppress(ValueError):
        offset, length = (int(number) for number in numbers if len(number) < 20)
        if offset >= 0 and length >= 0:
            return entries["location"], offset, length
    raise _invalid(f"{what} has external data at offset {numbers[0]!r}, length {numbers[1]!r}")


def _invalid(message: str) -> InvalidModel:
    return InvalidModel(message, field="model")
