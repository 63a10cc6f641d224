"""What is done to the server and to its clients while they work, and which errors that explains."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from headrace.client import Client, errors
from headrace.server.access.token_file import add_token, revoke_token
from tools.soak.timeline import Rule, Window
from tools.soak.world import World, patiently

FROZEN_SECONDS = 8.0
FLOOD = 400
"""Connections at a time: fewer than the server's places."""
STRANGER = "127.0.0.2"


class Provoker:
    """Does one thing after another, and keeps the time of each. Belongs to the soak's thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._version = 1
        self.windows: list[Window] = []

    @contextmanager
    def _during(self, name: str, **facts: object) -> Iterator[None]:
        window = Window(name, time.time(), facts=facts)
        self.windows.append(window)
        try:
            yield
        finally:
            window.end = time.time()

    def all(self) -> list[tuple[str, Callable[[], None]]]:
        """Every provocation that this machine allows, in the order of a round."""
        found: list[tuple[str, Callable[[], None]]] = [
            ("certificate", self.certificate),
            ("token", self.token),
            ("version", self.version),
            ("killed client", self.killed_client),
            ("frozen client", self.frozen_client),
            ("flood", self.flood),
        ]
        found += [
            (f"killed {device}", partial(self.killed_worker, device))
            for device in ("OPENVINO", "OPENCL")
            if device in self._world.devices
        ]
        if self._world.disk_is_small:
            found.append(("full disk", self.full_disk))
        return found

    def certificate(self) -> None:
        with self._during("certificate"):
            for _ in range(3):
                self._world.renew_certificate()
                time.sleep(1.5)  # the pace of the rotation

    def token(self) -> None:
        """A new token works soon, and no more once it is revoked."""
        with self._during("token"):
            name = f"turn-{secrets.token_hex(4)}"
            token = add_token(self._world.tokens, name, ["read"])
            patiently(lambda: self._enters(token), "the new token to be accepted")
            revoke_token(self._world.tokens, name)
            patiently(lambda: not self._enters(token), "the revoked token to be refused")

    def _enters(self, token: str) -> bool:
        with replace(self._world.place, token=token).client() as client:
            try:
                client.devices()
            except errors.Unauthenticated:
                return False
        return True

    def version(self) -> None:
        """Another version in the repository, which serves after a while."""
        with self._during("version"):
            self._version += 1
            self._world.put_version(self._version)
            with self._world.place.client() as client:
                patiently(lambda: self._serves(client), "the new version to serve")

    def _serves(self, client: Client) -> bool:
        ready = [
            row.version
            for row in client.repository()
            if row.name == "canary" and row.state == "READY"
        ]
        return ready == [str(self._version)]

    def killed_client(self) -> None:
        """A client that is killed in the middle of its calls, and started again."""
        with self._during("killed client"):
            self._world.kill("victim")
            self._world.start("victim")
            patiently(lambda: self._world.calls("victim"), "the next victim to call")

    def frozen_client(self) -> None:
        """A client that stands still with a stream open, and goes on."""
        with self._during("frozen client"):
            self._world.signal("frozen", signal.SIGSTOP)
            time.sleep(FROZEN_SECONDS)
            self._world.signal("frozen", signal.SIGCONT)
            time.sleep(1)

    def flood(self) -> None:
        """Connections of strangers that say nothing, to both ports, and some that say nonsense."""
        with self._during("flood"), ExitStack() as stack:
            for address in (self._world.server.address, self._world.server.http):
                host, _, port = address.rpartition(":")
                for number in range(FLOOD // 2):
                    with suppress(OSError):
                        made = stack.enter_context(
                            socket.create_connection((host, int(port)), 10, (STRANGER, 0))
                        )
                        if number % 4 == 0:
                            made.sendall(os.urandom(64))
            time.sleep(3)

    def killed_worker(self, device: str) -> None:
        """A device's process that is killed; the device comes back with all its networks."""
        worker = self._world.workers().get(device)
        if worker is None:
            return
        with self._during(f"killed {device}", pid=worker.pid):
            worker.kill()
            patiently(lambda: self._is_back(device, worker.pid), f"{device} to come back")

    def _is_back(self, device: str, gone: int) -> bool:
        now = self._world.workers().get(device)
        if now is None or now.pid == gone:
            return False
        with self._world.place.client() as client:
            states = {each.name: each.state for each in client.devices()}
        return states[device] == "UP"

    def full_disk(self) -> None:
        """No byte is free where state, cache and audit log lie; then there is room again."""
        with self._during("full disk"):
            filler = self._world.disk / "filler"
            with filler.open("wb", 0) as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 20))
            with filler.open("ab", 0) as file, suppress(OSError):
                while True:
                    file.write(bytes(256))
            time.sleep(6)
            filler.unlink()


def rules(world: World) -> list[Rule]:
    """Which errors of clients each provocation explains."""
    found = [
        # A frozen client's stream may have been ended, and its calls are late.
        Rule("frozen client", "UNAVAILABLE|DEADLINE_EXCEEDED", client="frozen-.*"),
        # A load that cannot be kept is refused.
        Rule("full disk", "RESOURCE_EXHAUSTED|FAILED_PRECONDITION", client="manager-.*"),
    ]
    for device in ("OPENVINO", "OPENCL"):
        for target in world.targets:
            if device in target.killed:
                code = "UNAVAILABLE|503|STREAMED"
                name = rf"\(?{target.name}\)?"  # and of networks that the manager makes like it
                found.append(Rule(f"killed {device}", code, network=name))
                # Its sequence may have ended with the request that failed.
                if target.name.startswith("sum-"):
                    found.append(
                        Rule(f"killed {device}", "FAILED_PRECONDITION", network=target.name)
                    )
    return found


LOGGED = {
    "killed OPENVINO": "OPENVINO|worker",
    "killed OPENCL": "OPENCL|worker",
    "full disk": "No space left|audit|cache|state",
    "certificate": r"server\.(crt|key)",
    "flood": "handshake|connection|TLS|SSL",
}
"""What the server may log as a warning or an error during each provocation."""
