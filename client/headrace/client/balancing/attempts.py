"""The attempts to have a request answered, and the places of a stream, without input or output.

The plans here yield calls on the clients of single servers. Both clients run them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf.message import Message as PlainMessage

from headrace.client.balancing.fleet import Fleet, Server
from headrace.client.balancing.health import Mark, Verdict, judge
from headrace.client.conversation import ConversationPlace
from headrace.client.errors import Error
from headrace.client.plans.plan import Budget, CallMethod, Pause, Plan
from headrace.wire.codec import CodecError
from headrace.wire.message import parse_infer_reply

T = TypeVar("T")
_LOST: Final = Verdict(Mark.ANSWERS, elsewhere=True)
_BACKOFF_SECONDS: Final = 0.25
_MAX_BACKOFF_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.25
_NETWORK_TAG: Final = 0x0A  # field 1 of InferRequest


@dataclass(slots=True)
class At(CallMethod):
    """Call a method of one server.

    Attributes:
        client: the client of this server.
    """

    client: Any = None


class RequestAttempts:
    """Which server gets a request next, and whether it is repeated. Not thread-safe; one attempt
    follows another.

    Args:
        request: a message, or a serialised InferRequest.
        tried: servers that should not get it, because they have it already.

    Attributes:
        last: the server of the last attempt; None before the first one.
    """

    __slots__ = ("_fleet", "_lacking", "_request", "_rounds", "_sent", "_tried", "last")

    def __init__(self, fleet: Fleet, request: Any, tried: tuple[Server, ...] = ()) -> None:
        self._fleet = fleet
        self._request = request
        self._tried = list(tried)
        self._sent = 0
        self._rounds = 0
        self._lacking = True  # all servers that were asked lack the network
        self.last: Server | None = None

    def server(self) -> Server:
        """The server for the next attempt. One of `answered`, `failed` and `released` must follow.

        Raises:
            Unavailable: no server is known.
        """
        self._sent += 1
        network, first = network_of(self._request), self._sent == 1
        self.last = self._fleet.pick(self._tried, network, first=first)
        return self.last

    def answered(self, server: Server, reply: Any) -> None:
        """Notes a reply."""
        if self._fleet.answered(server):
            load = load_of(reply)
            if load is not None:
                self._fleet.reported(server, load)

    def failed(self, server: Server, error: Error, *, given_up: bool = False) -> float | None:
        """Notes a failure.

        Args:
            given_up: the client itself gave the request up, because the server was silent.

        Returns:
            After how many seconds the next attempt is due; None if the error is final.
        """
        fleet = self._fleet
        verdict = _LOST if given_up else judge(error)
        fleet.failed(server, verdict, network_of(self._request))
        if not verdict.elsewhere:
            return None
        self._tried.append(server)
        if verdict.mark is Mark.LACKS:
            self._sent -= self._sent > 1
        else:
            self._lacking = False
        if self._sent >= fleet.options.attempts:
            return None
        others = fleet.has_other(self._tried)
        if not others and (self._lacking or verdict.mark is Mark.FULL):
            return None
        if not verdict.free and not fleet.may_repeat():
            return None
        if others:
            return 0.0
        self._tried.clear()
        self._lacking = True
        self._rounds += 1
        pause = min(_BACKOFF_SECONDS * 2.0 ** (self._rounds - 1), _MAX_BACKOFF_SECONDS)
        return pause * random.uniform(0.8, 1.2)  # noqa: S311 - spreads clients, keeps no secret

    def released(self, server: Server) -> None:
        """Notes that an attempt ended without saying anything of the server."""
        self._fleet.released(server)


class MovingPlace(ConversationPlace):
    """Where one stream is, of a client for several servers. Not thread-safe.

    Args:
        client: the client for several servers.
        network: the network that the stream's requests are for.
    """

    def __init__(self, client: Any, network: Any) -> None:
        super().__init__(client)
        self.attempts = client.fleet.options.attempts
        self._network = network
        self._next: RequestAttempts = client.attempts(network)
        self._server: Server | None = None
        self._route: Any = None
        self._progressed = False

    def take(self) -> Any:
        self._server = self._next.server()
        self._route = self._server.route
        return self._route

    def heard(self) -> None:
        self._progressed = True
        if self._server is not None:
            self.client.fleet.heard(self._server)

    def repeats(self, error: Error) -> bool:
        fleet, verdict = self.client.fleet, judge(error)
        if verdict.mark is Mark.FULL:  # its queue has room again before a stream has moved
            return False
        if self._server is not None:
            fleet.marked(self._server, verdict.mark)
        if not verdict.elsewhere:
            return False
        if verdict.mark is Mark.LACKS and not fleet.has_other(self._tried):
            return False
        return verdict.free or bool(fleet.may_repeat())

    def leave(self) -> float:
        tried = self._tried
        self.end()
        self._next = self.client.attempts(self._network, tried)
        return 0.0 if self.client.fleet.has_other(tried) else _PAUSE_SECONDS

    def lost(self, error: Error) -> float | None:
        server, self._server = self._server, None
        if server is None:
            return None
        if self._progressed:  # attempts count from the beginning again
            self._progressed = False
            self._next = self.client.attempts(self._network)
        given_up = server.gave_up(self._route) and not self.client.group.closed
        return self._next.failed(server, error, given_up=given_up)

    def end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self.client.fleet.released(server)

    @property
    def _tried(self) -> tuple[Server, ...]:
        return () if self._server is None else (self._server,)


def routed(group: Any, call: CallMethod, budget: Budget, attempts: RequestAttempts) -> Plan[Any]:
    """Makes a call on one server after another until one answers.

    Args:
        group: the client's `Servers`.
    """
    while True:
        server = attempts.server()
        route = server.route
        try:
            reply = yield At(call.method, call.request, budget.left_seconds, True, client=route)
        except Error as error:
            given_up = server.gave_up(route) and not group.closed
            pause = attempts.failed(server, error, given_up=given_up)
            if pause is None or pause >= budget.left_seconds:
                raise
            yield Pause(pause)
        except BaseException:
            attempts.released(server)
            raise
        else:
            attempts.answered(server, reply)
            return reply


def at(client: Any, steps: Plan[T]) -> Plan[T]:
    """The same plan, with the calls made on the client of one server."""
    resume, value = steps.send, None
    try:
        while True:
            step = resume(value)
            if isinstance(step, CallMethod):
                limit = step.timeout_seconds
                step = At(step.method, step.request, limit, step.once, client=client)
            try:
                resume, value = steps.send, (yield step)
            except (Error, OSError) as error:
                resume, value = steps.throw, error
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


def network_of(request: Any) -> str:
    """The name of the network that a request is for; empty if it is not known."""
    if isinstance(request, list):  # in parts
        request = bytes(request[0])
    if not isinstance(request, bytes):
        return str(getattr(request, "name", ""))
    # Our own encoder writes the name first. It has at most 128 characters.
    if len(request) < 2 or request[0] != _NETWORK_TAG or request[1] > 0x7F:
        return ""
    return request[2 : 2 + request[1]].decode("utf-8", "replace")


def load_of(reply: Any) -> int | None:
    """What an InferReply tells of its server's load. None if the reply is broken, or another
    method's."""
    if isinstance(reply, PlainMessage):
        return None
    try:
        message, _ = parse_infer_reply(reply)
    except CodecError:
        return None
    return int(message.in_flight)
