"""Access control of a server with TLS: who gets in, revocation, the audit log, and no secrets.

``ROTATION_SECONDS`` says how long tokens are rotated under load, by default 3.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from headrace.server.access.jwts import LEEWAY_SECONDS
from headrace.server.access.token_file import add_token, revoke_token
from headrace.server.services.methods import Kind, Method
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.integration.harness import BASIC, CALL_SECONDS, Server, until
from tests.support.access_table import (
    NOT_CONNECTED,
    Caller,
    answers_of_calls,
    answers_of_paths,
    ask,
    methods,
)
from tests.support.certificates import DAY, Authority, Pair
from tests.support.tokens import AUDIENCE, Signer, certificate_entry, key_set

SECONDS = float(os.environ.get("ROTATION_SECONDS", "3"))
WRONG = "hr_wrong-but-as-secret-as-the-others"
ROLES = ("read", "infer", "manage")
REMOVAL = pb.UnloadNetworkRequest(name="a")
REFILL_SECONDS = 1.1  # until the audit log takes refusals of an address again

Reply = tuple[int, dict[str, str], str]


class World:
    """A server, the files that it watches, and callers of all kinds."""

    def __init__(self, folder: Path) -> None:
        self.tokens = folder / "tokens.toml"
        self.audit = folder / "audit.jsonl"
        self.secrets: list[str] = [WRONG]
        self.told: list[str] = []  # all texts that callers got
        self.marks: set[str] = set()
        authority, self._other = Authority(), Authority("Another authority")
        self.authority = authority
        self._ca = authority.certificate
        certificate, key = authority.server().write(folder, "server")
        self.tokens.write_text("# of tests\n" + certificate_entry("worker.test", "infer"))
        self.by_role = {role: self.add(role, role) for role in ROLES}
        self.signer = Signer()
        keys = folder / "keys.json"
        keys.write_text(key_set([self.signer]))
        self._nobody = authority.client("nobody.test")
        self._worker = authority.client("x", names=("worker.test",))
        self._expired = authority.client("x", since=-3 * DAY, until=timedelta(days=-2))
        self._foreign = self._other.client("worker.test")
        self._folder = folder
        self.server = Server(
            *BASIC,
            "--log-level",
            "debug",
            "--log-format",
            "json",
            "--tls-cert",
            str(certificate),
            "--tls-key",
            str(key),
            "--tls-client-ca",
            str(authority.write(folder)),
            "--tokens",
            str(self.tokens),
            "--jwt-jwks",
            str(keys),
            "--jwt-audience",
            AUDIENCE,
            "--audit-log",
            str(self.audit),
        )

    def add(self, name: str, *roles: str) -> str:
        token = add_token(self.tokens, name, roles)
        self.secrets.append(token)
        return token

    def admit(self, name: str, *roles: str) -> Caller:
        """A caller with a new token, once the server knows the token."""
        caller = self.caller(name, self.add(name, *roles))
        until(lambda: self.lists(caller) == "OK", "the new token was to be accepted")
        return caller

    def lists(self, caller: Caller) -> str:
        return self.status(caller, "ListNetworks", pb.ListNetworksRequest())

    def jwt(self, *roles: str, **claims: Any) -> str:
        token = self.signer.sign(roles, **claims)
        self.secrets.append(token)
        return token

    def caller(self, name: str, token: str | None = None, pair: Pair | None = None) -> Caller:
        pair = pair or self._nobody
        credentials = grpc.ssl_channel_credentials(self._ca, pair.key, pair.certificate)
        tls = ssl.create_default_context(cadata=self._ca.decode())
        tls.load_cert_chain(*pair.write(self._folder, "caller"))
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.secure_channel(self.server.address, credentials, options)
        return Caller(name, channel, tls, token)

    def callers(self) -> list[Caller]:
        plain = grpc.insecure_channel(self.server.address)
        return [
            self.caller("no credential"),
            self.caller("wrong token", WRONG),
            self.caller("expired JWT", self.jwt("manage", seconds=-60)),
            self.caller("JWT for another audience", self.jwt("manage", aud="another")),
            self.caller("JWT with no known role", self.jwt("other")),
            *(self.caller(f"`{role}`", self.by_role[role]) for role in ROLES),
            self.caller("certificate with `infer`", pair=self._worker),
            self.caller("expired certificate", self.by_role["manage"], self._expired),
            self.caller("wrong authority", self.by_role["manage"], self._foreign),
            Caller("plain text", plain, None, self.by_role["manage"]),
        ]

    def status(self, caller: Caller, method: str, message: Any) -> str:
        """The status of one call of our service."""
        stub: Any = rpc.InferenceEngineStub(caller.channel)  # type: ignore[no-untyped-call]
        try:
            getattr(stub, method)(message, metadata=caller.headers.items(), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            self.told.append(f"{error.details()} {error.trailing_metadata()}")
            code: str = error.code().name
            return code
        return "OK"

    def get(
        self, caller: Caller, path: str, method: str = "GET"
    ) -> tuple[int, dict[str, str], str]:
        found: list[tuple[int, dict[str, str], str]] = []

        def read(reply: Any) -> str:
            names = {name.lower(): value for name, value in reply.getheaders()}
            found.append((reply.status, names, reply.read().decode()))
            return ""

        ask(self.server.http, method, path, caller.tls, caller.headers, None, read)
        (reply,) = found
        self.told.append(str(reply))
        return reply

    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    def recorded(self) -> None:
        """Waits until the audit log has the lines of all calls so far. A thread of each process
        writes them, and the calls of the two ports may end in different processes."""
        marks = (secrets.token_hex(8), secrets.token_hex(8))
        manager = self.caller("manage", self.by_role["manage"])
        self.status(manager, "UnloadNetwork", pb.UnloadNetworkRequest(name=marks[0]))
        self.get(manager, f"/v2/repository/models/{marks[1]}/unload", "POST")
        self.marks.update(marks)

        def has_both() -> bool:
            text = self.audit.read_text()
            return all(mark in text for mark in marks)

        until(has_both, "the audit log was to have all lines")

    def recording(self, calls: Callable[[], object]) -> list[dict[str, str]]:
        """The lines that the calls leave in the audit log. They are made again if the tests before
        have used up the refusals that the log takes from one address."""
        lines: list[dict[str, str]] = []
        refilled = threading.Event()
        for _ in range(10):
            self.recorded()
            before = len(self.lines())
            calls()
            self.recorded()
            lines = [each for each in self.lines()[before:] if each.get("name") not in self.marks]
            if all(each["outcome"] != "DROPPED" for each in lines):
                break
            refilled.wait(REFILL_SECONDS)
        return lines


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("access"))
    with world.server:
        yield world


@pytest.fixture
def reader(world: World) -> Caller:
    return world.caller("read", world.by_role["read"])


# -- who gets in --


def test_every_call_and_every_path_lets_exactly_those_in_whose_role_is_large_enough(
    world: World,
) -> None:
    callers = world.callers()
    answers = answers_of_calls(callers) | answers_of_paths(callers, world.server.http)
    for each in callers:
        each.channel.close()
    names = [each.name for each in callers]
    order = ["open", *ROLES]
    unknown, refused = {"UNAUTHENTICATED", "401"}, {"PERMISSION_DENIED", "403"}
    for what, (role, told) in answers.items():
        row = dict(zip(names, told, strict=True))
        needed = order.index(role)
        for stranger in names[:4]:
            assert (row[stranger] in unknown) == (needed > 0), (what, row)
        assert (row["JWT with no known role"] in refused) == (needed > 0), (what, row)
        for own in ROLES:
            assert (row[f"`{own}`"] in refused) == (order.index(own) < needed), (what, row)
            assert row[f"`{own}`"] not in unknown, (what, row)
        assert row["certificate with `infer`"] == row["`infer`"], (what, row)
        assert {row[each] for each in names[-3:]} == {NOT_CONNECTED}, (what, row)
    assert len(answers) > 80


def test_anybody_may_ask_for_the_servers_health_but_not_for_a_networks(
    world: World, reader: Caller
) -> None:
    (check,) = (each for each in methods() if each.name == "Check")

    def status(caller: Caller, service: str) -> str:
        call = caller.channel.unary_unary(f"/{check.service}/Check")
        message = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        try:
            call(message, metadata=caller.headers.items(), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            code: str = error.code().name
            return code
        return "OK"

    stranger = world.caller("stranger", WRONG)
    assert status(stranger, "") == status(stranger, "headrace.v1.InferenceEngine") == "OK"
    assert status(stranger, "network") == "UNAUTHENTICATED"
    assert status(reader, "network") == "NOT_FOUND"


def test_a_refusal_over_http_says_how_to_get_in_and_ends_a_strangers_connection(
    world: World, reader: Caller
) -> None:
    status, headers, body = world.get(world.caller("stranger"), "/v2/models/any")
    assert (status, headers["connection"]) == (401, "close")
    assert headers["www-authenticate"].startswith('Bearer realm="headrace"')
    assert "authorization: Bearer" in json.loads(body)["error"]
    status, headers, body = world.get(reader, "/v2/models/any/infer", "POST")
    assert (status, headers["www-authenticate"]) == (
        403,
        'Bearer realm="headrace", error="insufficient_scope", scope="infer"',
    )
    assert "the role infer" in json.loads(body)["error"]


def test_a_stranger_learns_nothing_about_what_exists(world: World) -> None:
    stranger = world.caller("stranger", WRONG)
    known = world.get(stranger, "/v2/models/any/ready")
    unknown = world.get(stranger, "/no/such/path")
    assert known[0] == unknown[0] == 401
    assert json.loads(known[2])["error"] == unknown[2].strip()


def test_two_credentials_in_one_call_are_refused(world: World, reader: Caller) -> None:
    stub: Any = rpc.InferenceEngineStub(reader.channel)  # type: ignore[no-untyped-call]
    twice = [*reader.headers.items(), *reader.headers.items()]
    with pytest.raises(grpc.RpcError) as caught:
        stub.ListNetworks(pb.ListNetworksRequest(), metadata=twice, timeout=CALL_SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_certificate_whose_name_only_begins_like_a_known_one_opens_nothing(world: World) -> None:
    pair = world.authority.client("worker.test\0.example.com")
    caller = world.caller("similar name", pair=pair)
    assert world.lists(caller) == "UNAUTHENTICATED"
    assert world.get(caller, "/v2")[0] == 401


def test_a_message_of_a_stranger_is_not_read(world: World) -> None:
    """A message that cannot be parsed, and half a message, are refused like any other."""
    stranger = world.caller("stranger", WRONG)
    call = stranger.channel.unary_unary(f"/{methods()[0].service}/LoadNetwork")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff" * 100, metadata=stranger.headers.items(), timeout=CALL_SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    never: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    opened = stranger.channel.stream_stream(f"/{methods()[0].service}/LoadNetwork")(
        iter(never.get, b"end"), metadata=stranger.headers.items(), timeout=CALL_SECONDS
    )
    assert opened.code() is grpc.StatusCode.UNAUTHENTICATED
    never.put(b"end")


# -- revocation --


def long_calls() -> list[Method]:
    """Calls that stay open: streams, watches, and a unary call whose message never comes."""
    wanted = {"InferStream", "ModelStreamInfer", "Watch", "ServerReflectionInfo", "UploadModel"}
    return [each for each in methods() if each.name in wanted or each.name == "LoadNetwork"]


def test_a_revoked_token_ends_every_open_call(world: World) -> None:
    caller = world.admit("leaver", "manage")
    end: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    calls = {}
    for method in long_calls():
        path = f"/{method.service}/{method.name}"
        wait = iter(end.get, b"end")
        sent = iter((b"",)) if method.kind is Kind.SERVER_STREAM else wait
        headers = tuple(caller.headers.items())
        calls[path] = caller.channel.stream_stream(path)(
            sent, metadata=headers, timeout=CALL_SECONDS
        )
    assert len(calls) == 7
    watch = next(call for path, call in calls.items() if path.endswith("Watch"))
    next(iter(watch))
    assert world.lists(caller) == "OK"
    revoke_token(world.tokens, "leaver")
    codes = {path: call.code() for path, call in calls.items()}
    assert codes == dict.fromkeys(calls, grpc.StatusCode.UNAUTHENTICATED)
    assert world.lists(caller) == "UNAUTHENTICATED"
    for _ in calls:
        end.put(b"end")


def test_a_revoked_token_ends_a_request_over_http_whose_body_is_on_its_way(world: World) -> None:
    caller = world.admit("slow", "infer")
    host, _, port = world.server.http.rpartition(":")
    assert caller.tls is not None
    with (
        socket.create_connection((host, int(port)), CALL_SECONDS) as plain,
        caller.tls.wrap_socket(plain, server_hostname=host) as connection,
    ):
        connection.sendall(
            b"POST /v2/models/any/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n"
            + f"authorization: Bearer {caller.token}\r\n\r\n{{".encode()
        )
        until(lambda: world.lists(caller) == "OK")
        revoke_token(world.tokens, "slow")
        reply = b""  # on a slow machine, the bound on the time of a body ends the connection
        with suppress(OSError):
            reply = connection.recv(1000)
        assert reply[:13] in (b"HTTP/1.1 401 ", b"")


def test_an_open_call_whose_role_becomes_too_small_is_ended(world: World) -> None:
    caller = world.admit("mover", "infer")
    end: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stream = caller.channel.stream_stream(f"/{methods()[0].service}/InferStream")(
        iter(end.get, b"end"), metadata=tuple(caller.headers.items()), timeout=CALL_SECONDS
    )
    assert world.lists(caller) == "OK"
    text = world.tokens.read_text()
    head, found, tail = text.partition('name = "mover"')
    world.tokens.write_text(head + found + tail.replace('["infer"]', '["read"]', 1))
    assert stream.code() is grpc.StatusCode.PERMISSION_DENIED
    assert world.lists(caller) == "OK"
    end.put(b"end")
    revoke_token(world.tokens, "mover")


def test_a_broken_file_keeps_the_tokens_and_is_named_in_the_log(
    world: World, reader: Caller
) -> None:
    text = world.tokens.read_text()
    world.tokens.write_text(text + "[[token]\n")
    until(lambda: f"{world.tokens}: " in world.server.log(), "the log was to name the file")
    assert world.lists(reader) == "OK"
    world.tokens.write_text(text)


def test_an_expired_jwt_ends_an_open_stream(world: World) -> None:
    caller = world.caller("hurried", world.jwt("infer", seconds=3 - LEEWAY_SECONDS))
    end: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stream = caller.channel.stream_stream(f"/{methods()[0].service}/InferStream")(
        iter(end.get, b"end"), metadata=tuple(caller.headers.items()), timeout=CALL_SECONDS
    )
    assert stream.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "expired" in stream.details()
    end.put(b"end")


def test_tokens_rotate_under_load_and_no_valid_client_fails(world: World) -> None:
    """A new token every second, and the last but one is revoked. Prints how long that took."""
    over = threading.Event()
    answered = {"steady": 0, "rotating": 0}
    failed: list[str] = []
    newest = [world.admit("r0", "read")]

    def load(name: str, channel: grpc.Channel, choose: Callable[[], Caller]) -> None:
        while not over.is_set():
            status = world.lists(choose()._replace(channel=channel))
            answered[name] += 1
            if status != "OK":
                failed.append(f"{name}: {status}")

    steady = world.caller("steady", world.by_role["read"])
    own = world.caller("rotating").channel
    threads = [
        threading.Thread(target=load, args=("steady", steady.channel, lambda: steady)),
        threading.Thread(target=load, args=("rotating", own, lambda: newest[0])),
    ]
    for thread in threads:
        thread.start()
    slowest, number = 0.0, 0
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        number += 1
        before = newest[0]
        newest[0] = world.admit(f"r{number}", "read")
        seen = answered["rotating"]
        until(lambda least=seen + 2: answered["rotating"] >= least)  # type: ignore[misc]
        revoked = time.monotonic()
        revoke_token(world.tokens, f"r{number - 1}")
        until(lambda gone=before: world.lists(gone) == "UNAUTHENTICATED")  # type: ignore[misc]
        slowest = max(slowest, time.monotonic() - revoked)
    over.set()
    for thread in threads:
        thread.join(CALL_SECONDS)
    revoke_token(world.tokens, f"r{number}")
    print(
        f"{number} rotations, {answered} calls, {len(failed)} failed; "
        f"revoked tokens were refused after at most {slowest:.2f} s"
    )
    assert not failed
    assert all(answered.values())
    if SECONDS >= 60:
        assert slowest < 2


# -- what is recorded --


def test_the_audit_log_has_a_line_for_each_managing_call_and_each_refused_one(
    world: World, reader: Caller
) -> None:
    manager = world.caller("manage", world.by_role["manage"])
    stranger = world.caller("stranger", WRONG)

    def calls() -> None:
        world.status(manager, "UnloadNetwork", pb.UnloadNetworkRequest(name="gone"))
        world.lists(manager)
        world.status(reader, "UnloadNetwork", pb.UnloadNetworkRequest(name="secret"))
        world.get(manager, "/v2/repository/models/gone/unload", "POST")
        world.get(stranger, "/v2/models/any")

    lines = world.recording(calls)
    facts = [
        tuple(each.get(key, "") for key in ("who", "method", "name", "outcome", "refusal"))
        for each in lines
    ]
    assert facts == [
        ("token:manage", "UnloadNetwork", "gone", "NOT_FOUND", ""),
        ("token:read", "UnloadNetwork", "", "PERMISSION_DENIED", "role"),
        ("token:manage", "POST /v2/repository/models/{model}/unload", "gone", facts[2][3], ""),
        ("stranger", "GET other", "/v2/models/any", "401", "unknown_token"),
    ]
    assert all(each["peer"].startswith("ipv4:127.0.0.1:") for each in lines)
    assert all(each["request_id"] and each["time"] for each in lines)


def test_a_renamed_audit_log_is_opened_anew(world: World) -> None:
    manager = world.caller("manage", world.by_role["manage"])
    renamed = world.audit.with_suffix(".1")
    world.recorded()
    world.audit.rename(renamed)
    world.status(manager, "UnloadNetwork", pb.UnloadNetworkRequest(name="after"))
    until(world.audit.exists, "a new file was to come")
    until(lambda: [each["name"] for each in world.lines()] == ["after"])
    world.audit.write_text(renamed.read_text() + world.audit.read_text())


def test_refused_callers_are_counted_by_reason(world: World, reader: Caller) -> None:
    def counted(reason: str) -> float:
        label = f'headrace_refused_callers_total{{reason="{reason}"}} '
        lines = world.get(reader, "/metrics")[2].splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(label))

    before = {reason: counted(reason) for reason in ("unknown_token", "role")}
    stranger = world.caller("stranger", WRONG)
    world.lists(stranger)
    world.get(stranger, "/v2")
    world.status(reader, "UnloadNetwork", pb.UnloadNetworkRequest(name="a"))
    assert counted("unknown_token") == before["unknown_token"] + 2
    assert counted("role") == before["role"] + 1


def test_no_secret_is_in_logs_errors_metrics_or_the_audit_log(world: World, reader: Caller) -> None:
    """It looks for all tokens of its own calls and of the tests before it."""
    for caller in world.callers()[:-3]:  # all that get as far as a call
        world.recording(partial(world.status, caller, "UnloadNetwork", REMOVAL))
        world.recording(partial(world.get, caller, "/v2/models/any"))
    metrics = world.get(reader, "/metrics")[2]
    assert "expired_jwt" in world.audit.read_text()
    places = {
        "log": world.server.log(),
        "audit": world.audit.read_text(),
        "metrics": metrics,
        "texts": "\n".join(world.told),
        "tokens": world.tokens.read_text(),
    }
    assert len(world.secrets) >= 7
    assert all(places.values())
    assert "UnloadNetwork" in places["log"]
    assert "PERMISSION_DENIED" in places["log"]
    for place, text in places.items():
        for secret in world.secrets:
            assert secret not in text, place
            assert secret[5:25] not in text or "." in secret, place  # a JWT's start is no secret
