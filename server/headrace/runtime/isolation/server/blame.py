"""Records what a worker was doing when it ended, and decides which model to blame.

A model is blamed only if nothing else can have ended the worker, because no other model was in use
there. So a client cannot make the server refuse another client's model by ending the worker while
that model loads. A model that was loaded or queried while others were in use is *suspected*: the
next time, it is first tried alone in a separate worker.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace.runtime.errors import EndedWorker
from headrace.runtime.intake import onnx_bytes
from headrace.runtime.intake.naming import walk
from headrace.runtime.network.network import Network

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

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
    """

    network: Network
    place: str
    verb: str

    @property
    def runs(self) -> bool:
        """Whether this is a request, not a load or query."""
        return self.verb == RUN

    def model(self) -> str:
        """A digest that identifies the model on the device. It ignores the network's name, inferred
        types, and the marks that a virtual device puts on layers."""
        model = self.network.clone().model
        model.metadata_props.clear()
        model.graph.metadata_props.clear()
        for node in walk(model.graph):
            node.metadata_props.clear()
            for value in node.outputs:
                value.type = value.shape = None
                value.metadata_props.clear()
        digest = hashlib.sha256()
        for piece in onnx_bytes.serialize(model):
            digest.update(piece)
        return f"{self.place}:{digest.hexdigest()}"


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


class Blamed:
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

    def judge(self, end: End) -> None:
        """Records the end of a worker."""
        works = sorted(dict.fromkeys(end.works), key=lambda work: work.runs)
        found = [(work.model(), work) for work in works]
        models = dict(found)  # each with one of its requests, if there was one
        when = self._clock()
        with self._lock:
            for model, work in found:
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

    def check(self, work: Work) -> None:
        """
        Raises:
            EndedWorker: the model is blamed.
        """
        if self._blamed:
            model = work.model()
            with self._lock:
                text = self._blamed.get(model)
            if text:
                raise EndedWorker(text, field="model", metadata={"device": self._device})

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
