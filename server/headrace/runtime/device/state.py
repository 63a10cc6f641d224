"""Whether each device is up: a stream of events for health, metrics, AUTO and MULTI."""

from __future__ import annotations

import enum
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

_log = logging.getLogger(__name__)


class DeviceState(enum.Enum):
    UP = "UP"
    DOWN = "DOWN"
    RESTARTING = "RESTARTING"


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """A device's state from now on, and why."""

    device: str
    state: DeviceState
    reason: str = ""


Listener: TypeAlias = Callable[[DeviceEvent], None]


class DeviceStates:
    """The state of every device, and the listeners to its changes. Thread-safe.

    `_lock` guards all fields and is never held while a listener runs. One thread at a time delivers
    events, in the order in which the states were set. If another thread or a listener calls `set`
    meanwhile, `set` leaves its event to the delivering thread and returns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, DeviceEvent] = {}
        self._outages: Counter[str] = Counter()
        self._listeners: dict[object, Listener] = {}
        self._undelivered: deque[tuple[DeviceEvent, tuple[object, ...]]] = deque()
        self._delivering = False

    def set(self, device: str, state: DeviceState, reason: str = "") -> None:
        """Sets a device's state. Listeners get no event if the state and reason are unchanged."""
        event = DeviceEvent(device, state, reason)
        with self._lock:
            before = self._events.get(device)
            if before == event:
                return
            if before is not None and before.state is DeviceState.UP is not state:
                self._outages[device] += 1
            self._events[device] = event
            self._undelivered.append((event, tuple(self._listeners)))
        self._deliver()

    def get(self, device: str) -> DeviceEvent | None:
        """The last event of a device; None if its state was never set."""
        with self._lock:
            return self._events.get(device)

    def current(self) -> dict[str, DeviceEvent]:
        """The last event of each device."""
        with self._lock:
            return dict(self._events)

    def outages(self) -> Counter[str]:
        """How often each device was up and then no longer."""
        with self._lock:
            return self._outages.copy()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with each device's current state and then with every change.

        If a listener raises, the error is logged, and the other listeners still get the event.

        Returns:
            A function that ends the subscription. It does not stop a call of the listener that runs
            on another thread at that moment.
        """
        ticket = object()
        with self._lock:
            self._listeners[ticket] = listener
            self._undelivered.extend((event, (ticket,)) for event in self._events.values())

        def unsubscribe() -> None:
            with self._lock:
                self._listeners.pop(ticket, None)

        self._deliver()
        return unsubscribe

    def _deliver(self) -> None:
        while True:
            with self._lock:
                if self._delivering or not self._undelivered:
                    return
                self._delivering = True
                event, tickets = self._undelivered.popleft()
            try:
                for ticket in tickets:
                    self._tell(ticket, event)
            finally:
                with self._lock:
                    self._delivering = False

    def _tell(self, ticket: object, event: DeviceEvent) -> None:
        with self._lock:
            listener = self._listeners.get(ticket)
        if listener is None:
            return
        try:
            listener(event)
        except Exception:  # noqa: BLE001 - a listener's bug must not hide the event from others
            _log.exception("listener %r failed on %r", listener, event)
