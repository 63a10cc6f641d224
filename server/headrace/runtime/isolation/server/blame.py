"""What a worker was doing when it ended, and which model its end is blamed on.

A model is blamed only where nothing else can have ended the worker: no other model was at work
there. So a client cannot make the server refuse another client's model by ending the worker while
that model loads. A model that was loaded or queried while others were at work is *suspected*: the
next time, it is first tried in a worker of its own, where it is alone.
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
"""Models at most; the oldest are forgotten."""
ENDS: Final = 3
"""A model is blamed after this many ends within `WITHIN_SECONDS`, where one alone proves little:
its requests ended the worker, or the worker was killed while the model was loaded, as the system
does where memory is short."""
WITHIN_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """
    Attributes:
        place: the device's id.
        verb: what is done to the network, as "loaded".
    """

    network: Network
    place: str
    verb: str

    @property
    def runs(self) -> bool:
        """It is a request, not a load or query."""
        return self.verb == RUN

    def model(self) -> str:
        """The same for the same model on the same device, whatever the network is called, and
        whether its types have been inferred and its layers marked by a virtual device or not."""
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
        how: the signal's name, or what else there is to say.
        crashed: it ended itself, or had to be killed for what it did; otherwise somebody killed it.
        works: what it was doing.
    """

    how: str
    crashed: bool
    works: tuple[Work, ...]

    def only(self, work: Work) -> bool:
        """Whether it was this alone that it was doing, so that this ended it."""
        return self.crashed and self.works == (work,)

    def by_request(self, device: str) -> EndedWorker:
        """The error of a request that was all that the worker of a device was doing."""
        return EndedWorker(
            f"this request ended the worker process of device {device} ({self.how}): nothing else "
            "ran there; do not send it again",
            metadata={"device": device},
        )


class Blamed:
    """The models that ended a device's workers. Thread-safe; `_lock` guards all tables, and no
    digest is made under it. A restart of the server forgets all.

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
        works = sorted(end.works, key=lambda work: work.runs)
        found = [(work.model(), work) for work in works]
        models = dict(found)  # with a request of each, if there was one
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
        """The model was tried alone, and the worker lived."""
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
