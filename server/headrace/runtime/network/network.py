"""The network: an onnx-ir model with uniquely named layers, its ports and its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, Literal, Self, TypeAlias, TypeVar, cast

import onnx_ir as ir

from headrace.runtime.intake import naming, onnx_bytes, provenance
from headrace.runtime.intake import read as intake
from headrace.runtime.intake.external import FilesInFolder, OpenFiles
from headrace.runtime.intake.model_files import ModelFiles
from headrace.runtime.intake.read import Limits
from headrace.runtime.intake.zip_maps import CLASSES, Classes, from_metadata
from headrace.runtime.network.constants import tensor_of
from headrace.runtime.network.random_layers import random_layers
from headrace.runtime.system.buffers import Buffer, joined
from headrace.runtime.system.graph_memory import watched
from headrace.runtime.system.mapped_files import MappedFiles

T = TypeVar("T")

Dimension: TypeAlias = int | str | None
"""A fixed size, a symbol that means the same size wherever it occurs, or None if unknown."""

_IR_OF_DEFAULTS = 4
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
LAYOUT = provenance.METADATA_PREFIX + "layout"


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a network.

    Attributes:
        shape: None if even the rank is unknown. For a sequence, the shape of each element.
        kind: the `dtype` of a sequence is the `dtype` of its elements.
        layout: what each axis means, for example ``NHWC``; empty if it is not given.
        classes: what the columns of a classifier's scores stand for; empty if it is not told.
    """

    name: str
    dtype: ir.DataType
    shape: tuple[Dimension, ...] | None
    kind: Literal["tensor", "sequence"] = "tensor"
    optional: bool = False
    layout: str = ""
    classes: Classes = ()

    @property
    def fixed_shape(self) -> tuple[int, ...] | None:
        """The shape of a tensor that is the same in every run; None for any other port."""
        if self.shape is None or self.kind != "tensor" or self.optional:
            return None
        sizes = tuple(size for size in self.shape if isinstance(size, int) and size >= 0)
        return sizes if len(sizes) == len(self.shape) else None


def port_to_json(port: Port) -> list[Any]:
    shape = None if port.shape is None else list(port.shape)
    classes = list(port.classes)
    return [port.name, port.dtype.value, shape, port.kind, port.optional, port.layout, classes]


def port_from_json(facts: list[Any]) -> Port:
    name, dtype, shape, kind, optional, layout, classes = facts
    shape = None if shape is None else tuple(shape)
    return Port(name, ir.DataType(dtype), shape, kind, optional, layout, tuple(classes))


@dataclass(frozen=True, slots=True)
class Layer:
    """A node of a network, or of the graph that a device made from the network.

    Attributes:
        origins: the layers of the network as loaded that this one stands for.
    """

    name: str
    op_type: str
    domain: str
    device: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


def layer_to_json(layer: Layer) -> list[Any]:
    return list(astuple(layer))


def layer_from_json(facts: list[Any]) -> Layer:
    name, op_type, domain, device, inputs, outputs, origins = facts
    return Layer(name, op_type, domain, device, tuple(inputs), tuple(outputs), tuple(origins))


class Network:
    """A model that must not change. To change it, `clone` it and change the clone's `model` before
    you read any other property of the clone, because the properties are cached.

    Reading is thread-safe. Tensors are shared with the bytes that the network was read from and
    with every clone.

    Attributes:
        notes: changes to the network as it was given that may show in its results, and what lay
            beside it and has no effect.
        is_kept: whether somebody keeps the network for later loads, with all that is made of it.
        source: the files that it is read from, and read again after `free_memory`; None if they are
            not kept.
    """

    source: ModelFiles | None = None
    _read: Callable[[], Network]  # of a model that is read later, as `_reading`
    _reading: AbstractContextManager[object]

    def __init__(
        self, model: ir.Model, files: MappedFiles | None = None, notes: tuple[str, ...] = ()
    ) -> None:
        """Takes ownership of `model`. Its layers must have unique names. Its tensors may lie in
        `files`."""
        self._model: ir.Model | None = watched(model)
        self.notes = notes
        self._files = files
        self._derived: dict[Hashable, Any] | None = None

    @classmethod
    def from_source(cls, source: ModelFiles, facts: Mapping[str, Any]) -> Network:
        """As `unread`, of a model that is read from its files."""

        def read() -> Network:
            return Network.from_data(*source.read(), source.limits, spooled=True)

        network = Network.unread(read, facts)
        network.source = source
        return network

    @classmethod
    def unread(cls, read: Callable[[], Network], facts: Mapping[str, Any]) -> Self:
        """A network whose model is read when somebody asks for it. What is known of it without its
        model must be what its model says.

        Args:
            read: returns the network, each time the same one. It may raise as a load does.
            facts: the values of some of its properties, and its `notes`.
        """
        network = cls.__new__(cls)
        vars(network).update(
            {"notes": (), **facts},
            _model=None,
            _read=read,
            _reading=RLock(),
            _files=None,
            _derived=None,
        )
        return network

    @property
    def is_read(self) -> bool:
        """Whether the model is in memory."""
        return self._model is not None

    @property
    def model(self) -> ir.Model:
        """The model. Asking for it may take as long as a load, and raise as one does, so no thread
        that many wait for may ask unless the network is known to be read."""
        model = self._model
        if model is None:
            with self._reading:
                model = self._model
                if model is None:
                    model = self._take(self._read())
        return model

    def _take(self, read: Network) -> ir.Model:
        self._files = read._files
        self._model = read.model
        if self.source is None:
            del self._read  # it may refer to much
        return self._model

    @classmethod
    def from_bytes(
        cls,
        data: Buffer,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        spooled: bool = False,
        beside: Mapping[str, Buffer] | None = None,
    ) -> Network:
        """The network of a serialised ModelProto. The weights are not copied.

        Args:
            spooled: move large weights to a temporary file. Use it for a network that stays loaded.
            beside: the files that hold the model's external data, by their path relative to the
                model; None if all weights have to be inline.

        Raises:
            InvalidModel: whatever is wrong with the model, hostile or not.
        """
        files = MappedFiles()
        notes: list[str] = []
        model = intake.from_bytes(data, limits, files, spooled=spooled, beside=beside, notes=notes)
        return cls(model, files, tuple(notes))

    @classmethod
    def from_file(
        cls,
        path: Path,
        folder: Path,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        spooled: bool = False,
        root: Path | None = None,
    ) -> Network:
        """The network of a file. Its external data, if any, lies inside `folder`. The file may be a
        link to any place in `root`; without `root`, in `folder`.

        External data is mapped into memory. To replace such a file, rename another file over it. If
        you write to the file in place, a loaded network changes. If you shorten it, the server
        ends. `spooled` means the same as in `from_bytes`.

        Raises:
            InvalidModel: whatever is wrong with the model, hostile or not.
        """
        data = intake.read_file(path, folder, limits, root)
        external = FilesInFolder(folder, path.parent, limits)
        return cls.from_data(data, external, limits, spooled=spooled)

    @classmethod
    def from_data(
        cls,
        data: Buffer,
        external: FilesInFolder | OpenFiles,
        limits: Limits,
        *,
        spooled: bool = False,
    ) -> Network:
        """As `from_file`, with the bytes of the file."""
        notes: list[str] = []
        model = intake.from_file(data, limits, external, spooled=spooled, notes=notes)
        return cls(model, external.mapped, tuple(notes))

    def clone(self) -> Network:
        """A copy that shares the tensors. No weight is copied."""
        return Network(self.model.clone())

    @property
    def is_kept(self) -> bool:
        return self._derived is not None

    def keep(self) -> None:
        """Keeps what is made of the network from now on, until `forget`."""
        if self._derived is None:
            self._derived = {}

    def forget(self) -> None:
        """Drops what was made of the network."""
        derived, self._derived = self._derived, None
        for value in (derived or {}).values():
            if isinstance(value, Network):
                value.forget()

    def derived(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes of the network. While the network is kept, that is made once for each
        key, and nobody may change it. A network that is made so is kept, too. No thread waits for
        another that makes the same."""
        derived = self._derived
        if derived is None:
            return make()
        if key in derived:
            return cast(T, derived[key])
        made = make()
        if isinstance(made, Network):
            made.keep()
        return cast(T, derived.setdefault(key, made))

    def known(self, key: Hashable) -> Any:
        """What `derived` made under the key; None if it has made nothing that is kept."""
        return (self._derived or {}).get(key)

    @cached_property
    def operators(self) -> frozenset[tuple[str, str]]:
        """Domain and type of all layers, those in bodies and functions included."""
        scopes: list[ir.Graph | ir.Function] = [self.model.graph, *self.model.functions.values()]
        return frozenset(
            (node.domain, node.op_type) for scope in scopes for node in naming.walk(scope)
        )

    @cached_property
    def random_layers(self) -> tuple[str, ...]:
        """The layers that give other outputs for the same inputs the next time."""
        return random_layers(self.model)

    @cached_property
    def size(self) -> int:
        """How many layers the network has, those in bodies included."""
        return sum(1 for _ in self.nodes())

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs that a request must give: graph inputs without an initialiser."""
        initializers = self.model.graph.initializers
        return tuple(
            port_of(value) for value in self.model.graph.inputs if value.name not in initializers
        )

    @cached_property
    def defaults(self) -> tuple[Port, ...]:
        """The inputs that a request may give: graph inputs with an initialiser, which is what they
        are otherwise. Before IR version 4 every initialiser is an input, and none may be given."""
        if self.model.ir_version < _IR_OF_DEFAULTS:
            return ()
        initializers = self.model.graph.initializers
        return tuple(
            port_of(value) for value in self.model.graph.inputs if value.name in initializers
        )

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        return tuple(port_of(value) for value in self.model.graph.outputs)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All nodes, each followed by those of its bodies."""
        return tuple(_layer(node) for node in self.nodes())

    @cached_property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.layers)

    def nodes(self) -> Iterator[ir.Node]:
        """All nodes, each followed by those of its bodies."""
        return naming.walk(self.model.graph)

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """What the model says of itself, in the order of the file."""
        return dict(self.model.metadata_props)

    def metadata(self, max_bytes: int) -> dict[str, str]:
        """What the model says of itself, in the order of the file. What does not fit into
        `max_bytes` together is left out."""
        metadata = {}
        for key, text in self.properties.items():
            size = len(key.encode()) + len(text.encode())
            if size <= max_bytes:
                metadata[key] = text
                max_bytes -= size
        return metadata

    def to_bytes(self) -> bytes:
        """A serialised ModelProto with inline tensors."""
        return joined(self.chunks())

    def chunks(self) -> Iterator[Buffer]:
        """The bytes of `to_bytes`, in pieces that share the weights' memory."""
        return onnx_bytes.serialize(self.model)

    def free_memory(self) -> None:
        """Frees weights that lie in files, and the model if it has a source and nobody keeps it.
        Both are read again when somebody asks for them."""
        if self._files is not None:
            self._files.forget_pages()
        if self.source is not None and not self.is_kept:
            with self._reading:
                self._model = self._files = None

    @cached_property
    def weight_bytes(self) -> int:
        """The size of all initialisers and of all tensors in attributes, including those of bodies
        and functions."""
        return sum(int(tensor.nbytes) for tensor in self._weights())

    @cached_property
    def widened_bytes(self) -> int:
        """The same, with floats of 16 bits in float32."""
        return self.weight_bytes + sum(
            int(tensor.nbytes) for tensor in self._weights() if tensor.dtype in _HALVES
        )

    def _weights(self) -> Iterator[ir.TensorProtocol]:
        tensors: list[ir.TensorProtocol | None] = []
        for graph in naming.graphs(self.model):
            tensors += (value.const_value for value in graph.initializers.values())
        scopes: list[ir.Graph | ir.Function] = [self.model.graph, *self.model.functions.values()]
        for node in (node for scope in scopes for node in naming.walk(scope)):
            tensors += (
                tensor_of(attribute)
                for attribute in node.attributes.data.values()
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref()
            )
        return (tensor for tensor in tensors if tensor is not None)

    @cached_property
    def types(self) -> frozenset[ir.DataType]:
        """The data types of the graph's inputs, outputs and initialisers."""
        graph = self.model.graph
        values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
        return frozenset(value.dtype for value in values if value.dtype is not None)

    @property
    def known_digest(self) -> str:
        """The `digest`, if it was asked for before. Empty otherwise: finding it out reads all."""
        return str(vars(self).get("digest", ""))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `to_bytes`, in hexadecimal."""
        sha = hashlib.sha256()
        for chunk in self.chunks():
            sha.update(chunk)
        return sha.hexdigest()


def port_of(value: ir.Value) -> Port:
    """The port of a value, with the type and shape that are declared or known."""
    value_type = value.type
    optional = isinstance(value_type, ir.OptionalType)
    if isinstance(value_type, ir.OptionalType):
        value_type = value_type.elem_type
    return Port(
        name=value.name or "",
        dtype=ir.DataType.UNDEFINED if value.dtype is None else value.dtype,
        shape=None if value.shape is None else tuple(map(_dimension, value.shape)),
        kind="sequence" if isinstance(value_type, ir.SequenceType) else "tensor",
        optional=optional,
        layout=value.metadata_props.get(LAYOUT, ""),
        classes=from_metadata(value.metadata_props.get(CLASSES, "")),
    )


def _dimension(dimension: int | ir.SymbolicDim) -> Dimension:
    return dimension if isinstance(dimension, int) else dimension.value


def _layer(node: ir.Node) -> Layer:
    return Layer(
        name=node.name or "",
        op_type=node.op_type,
        domain=node.domain,
        inputs=tuple("" if value is None else value.name or "" for value in node.inputs),
        outputs=tuple(value.name or "" for value in node.outputs),
        origins=provenance.origins(node),
    )
