"""Records what a worker was doing when it ended, and decides which model to blame.

A model is blamed only if nothing else can have ended the worker, because no other model was in use
there. So a client cannot make the server refuse another client's model by ending the worker while
that model loads. A model that was loaded or queried while others were in use is *suspected*: the
next time, it is first tried alone in a separate worker.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import onnx_ir as ir

from headrace.runtime.errors import EndedWorker, HeadraceError, ResourceExhausted, Unavailable
from headrace.runtime.intake import onnx_bytes
from headrace.runtime.intake.naming import bodies
from headrace.runtime.network.network import Network
from headrace.runtime.system.asker import Asker, current_asker
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.system.interruption import wanted

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

REFUSED_SECONDS: Final = 300.0
"""How long an identity is refused whose models have ended `ENDS` workers within this time."""
REMEMBERED: Final = 1024
"""The most models that are remembered. The oldest are forgotten first."""
ENDS: Final = 3
"""A model is blamed after this many ends within `WITHIN_SECONDS`, if a single end proves little.
That is so if the model's requests ended the worker, or if the worker was killed while the model was
loaded. The system kills processes when memory is short."""
WITHIN_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """
    Attributes:
        place: the device's id.
        verb: what the worker does with the network, for example "loaded".
        asker: who has asked for it. For a request, who has loaded the network.
    """

    network: Network
    place: str
    verb: str
    asker: Asker = field(default_factory=current_asker)

    @property
    def runs(self) -> bool:
        """Whether this is a request, not a load or query."""
        return self.verb == RUN

    def model(self) -> str:
        """A digest that identifies the model on the device by its structure and its constants.

        Names mean nothing, so a model under other names is the same. The digest also ignores
        inferred types, and the marks that a virtual device puts on layers.
        """
        try:
            model = self.network.clone().model
        except (HeadraceError, OSError):  # its file was written to since it was loaded
            return f"{self.place}:{self.network.known_digest}"
        model.doc_string = model.producer_name = model.producer_version = None
        model.metadata_props.clear()
        digest, names = hashlib.sha256(), map(str, itertools.count())
        graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
        for graph in graphs:
            for piece in _without_names(graph, names):
                digest.update(piece)
        digest.update(ir.to_proto(model).SerializeToString(deterministic=True))
        return f"{self.place}:{digest.hexdigest()}"


def _without_names(graph: ir.Graph | ir.Function, names: Iterator[str]) -> Iterator[Buffer]:
    """Numbers all in the graph and in its bodies, in the order in which it stands there. Takes its
    constants out and yields them: the clone shares them, and may not rename them."""
    graph.doc_string = None
    graph.metadata_props.clear()
    values = list(graph.inputs)
    if isinstance(graph, ir.Graph):
        graph.name = ""
        for value in graph.initializers.values():
            tensor, value.const_value = value.const_value, None
            if tensor is not None:
                yield from _contents(tensor)
        values += graph.initializers.values()
        graph.initializers.clear()
    for value in dict.fromkeys(values):
        _forget_name(value, names)
        if value.shape is not None:
            value.shape = ir.Shape(
                [size if isinstance(size, int) else None for size in value.shape]
            )
    for node in wanted(graph):
        node.name = node.doc_string = None
        node.metadata_props.clear()
        for value in node.outputs:
            value.type = value.shape = value.const_value = None
            _forget_name(value, names)
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield name.encode()
                yield from _contents(attribute.as_tensor())
                del node.attributes[name]
            elif attribute.doc_string:
                attribute.doc_string = None
        for _, body in bodies(node):
            yield from _without_names(body, names)


def _forget_name(value: ir.Value, names: Iterator[str]) -> None:
    value.doc_string = None
    value.metadata_props.clear()
    if value.name:
        value.name = next(names)


def _contents(tensor: ir.TensorProtocol) -> Iterator[Buffer]:
    yield f"{tensor.dtype.name}{tensor.shape}".encode()
    if tensor.dtype.is_string():
        yield repr(tensor.numpy().tolist()).encode()
    elif tensor.dtype.bitwidth < 8:
        yield tensor.tobytes()
    else:
        yield onnx_bytes.data(tensor)


RUN: Final = "run"


@dataclass(frozen=True, slots=True)
class End:
    """How a worker ended.

    Attributes:
        how: the signal's name, or another description.
        crashed: whether the worker ended itself, or the server killed it for what it did. If not,
            somebody else killed it.
        works: what the worker was doing, or what the server killed it for.
        others: whether the worker was doing more than that.
    """

    how: str
    crashed: bool
    works: tuple[Work, ...]
    others: bool = False

    def only(self, work: Work) -> bool:
        """Whether the worker crashed while it did only `work`, so that `work` ended it."""
        return self.crashed and self.works == (work,) and not self.others

    def by_request(self, device: str) -> EndedWorker:
        """The error for a request that ended the device's worker while nothing else ran there."""
        return EndedWorker(
            f"this request ended the worker process of device {device} ({self.how}): nothing else "
            "ran there; do not send it again",
            metadata={"device": device},
        )


class Blame:
    """The models that ended a device's workers. Thread-safe; `_lock` guards all tables, and no
    digest is computed under it. A restart of the server forgets all of them.

    Args:
        device: the device's name.
        clock: seconds since 1970.
    """

    def __init__(self, device: str, clock: Callable[[], float] = time.time) -> None:
        self._device = device
        self._clock = clock
        self._lock = threading.Lock()
        self._ends: OrderedDict[str, deque[float]] = OrderedDict()
        self._suspected: OrderedDict[str, None] = OrderedDict()
        self._blamed: OrderedDict[str, str] = OrderedDict()
        self._offences: OrderedDict[str, deque[float]] = OrderedDict()

    def judge(self, end: End) -> None:
        """Records the end of a worker."""
        if end.crashed and len(set(end.works)) == 1 and not end.others:
            self.offended(end.works[0].asker)
        works = sorted(dict.fromkeys(end.works), key=lambda work: work.runs)
        suspects = [(work.model(), work) for work in works]
        models = dict(suspects)  # each with one of its requests, if there was one
        when = self._clock()
        with self._lock:
            for model, work in suspects:
                if not work.runs:
                    _remember(self._suspected, model, None)
            if len(models) != 1:
                return
            ((model, work),) = models.items()
            if work.runs and not end.crashed:
                return
            ends = self._ends.get(model) or deque(maxlen=ENDS)
            _remember(self._ends, model, ends)
            ends.append(when)
            often = len(ends) == ENDS and when - ends[0] <= WITHIN_SECONDS
            if often or (end.crashed and not work.runs):
                text = self._text(end, work, when, often)
                _remember(self._blamed, model, text)
                _log.error("%s", text)

    def offended(self, asker: Asker) -> None:
        """Records that a model of `asker` has ended a worker, or that a worker had to be ended
        because of it. Whoever may unload others' networks is not recorded."""
        if asker.trusted:
            return
        with self._lock:
            times = self._offences.get(asker.name) or deque(maxlen=ENDS)
            _remember(self._offences, asker.name, times)
            times.append(self._clock())

    @contextmanager
    def told(self, work: Work) -> Iterator[None]:
        """Within it, the end of the worker raises EndedWorker if the model is blamed for it."""
        try:
            yield
        except Unavailable as error:
            try:
                self.check(work, again=True)
            except EndedWorker as blamed:
                raise blamed from error
            raise

    def check(self, work: Work, *, again: bool = False) -> None:
        """
        Args:
            again: whether the work was let in already, so that only the model is checked.

        Raises:
            EndedWorker: the model is blamed.
            ResourceExhausted: models of whoever asks have ended too many workers lately.
        """
        if not again and not work.asker.trusted:
            self._check_asker(work.asker)
        if self._blamed:
            model = work.model()
            with self._lock:
                text = self._blamed.get(model)
            if text:
                raise EndedWorker(text, field="model", metadata={"device": self._device})

    def _check_asker(self, asker: Asker) -> None:
        with self._lock:
            times = self._offences.get(asker.name)
            often = times is not None and len(times) == ENDS
            left = times[0] + REFUSED_SECONDS - self._clock() if times and often else 0.0
        if left > 0:
            error = ResourceExhausted(
                f"your models have ended {ENDS} worker processes of device {self._device} within "
                f"{REFUSED_SECONDS:g} s; it takes models of yours again in {math.ceil(left)} s",
                metadata={"device": self._device},
            )
            error.retry_delay_seconds = left
            raise error

    def suspects(self, work: Work) -> bool:
        """Whether the model must be tried alone."""
        if not self._suspected:
            return False
        model = work.model()
        with self._lock:
            return model in self._suspected

    def acquit(self, work: Work) -> None:
        """Clears the suspicion: the model was tried alone, and the worker survived."""
        model = work.model()
        with self._lock:
            self._suspected.pop(model, None)

    def _text(self, end: End, work: Work, when: float, often: bool) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when))
        times = f"{ENDS} worker processes" if often else "the worker process"
        doing = "ran" if work.runs else f"was {work.verb}"
        return (
            f"this model ended {times} of device {self._device} ({end.how}), at {at} while it "
            f"{doing}; the device refuses the model until the server is restarted"
        )


def _remember(table: OrderedDict[str, _T], key: str, value: _T) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > REMEMBERED:
        table.popitem(last=False)
