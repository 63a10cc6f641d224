"""Certificates and tokens that change every second under load: no request of a valid client fails.
``make test-tls``; ROTATION_SECONDS says how long, by default 60."""

from __future__ import annotations

import hashlib
import os
import ssl
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.client import Client, errors
from headrace.testing import networks
from tests.integration.harness import BASIC, CALL_SECONDS, Server
from tests.support.certificates import Authority

SECONDS = float(os.environ.get("ROTATION_SECONDS", "60"))
REVOKED_SECONDS = 2.0
TOKEN = "the-token-of-the-valid-client"


class Load:
    """Calls without a pause, each kind on a thread of its own."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.failed: list[str] = []
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, kind: str, call: Callable[[], object]) -> None:
        def run() -> None:
            while not self._over.is_set():
                try:
                    call()
                except (errors.Error, OSError) as error:
                    self.failed.append(f"{kind}: {error}")
                else:
                    self.answered[kind] += 1

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(CALL_SECONDS)


def entry(name: str, token: str) -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nroles = ["manage"]\n'


def replace(path: Path, data: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)


def refused_after(target: str, ca: Path, token: str) -> float:
    """The seconds until a token is refused."""
    begin = time.monotonic()
    with Client(target, tls_ca=ca, token=token) as client:
        while True:
            try:
                client.devices()
            except errors.Unauthenticated:
                return time.monotonic() - begin
            assert time.monotonic() - begin < CALL_SECONDS


@pytest.mark.timeout(SECONDS + 120)
def test_no_request_fails_while_certificates_and_tokens_change_every_second(tmp_path: Path) -> None:
    rotate(tmp_path, SECONDS)


def rotate(folder: Path, seconds: float) -> None:
    """Starts a server and clients, and replaces the files of TLS and the tokens every second."""
    authority = Authority()
    ca = authority.write(folder)
    certificate, key = authority.server().write(folder, "server")
    tokens = folder / "tokens.toml"
    tokens.write_text(entry("valid", TOKEN) + entry("turn-0", "turn-0"))
    files = ("--tls-cert", str(certificate), "--tls-key", str(key), "--tokens", str(tokens))
    load, rotations, revoked = Load(), 0, []
    with Server(*BASIC, *files) as server:
        target = server.address.replace("127.0.0.1", "localhost")
        context = ssl.create_default_context(cafile=ca)
        request = urllib.request.Request(
            f"https://{server.http}/v2/health/live", headers={"authorization": f"Bearer {TOKEN}"}
        )
        case = networks.add()

        def once() -> None:
            with Client(target, tls_ca=ca, token=TOKEN) as new:
                new.devices()

        def https() -> None:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS, context=context) as reply:
                assert reply.status == 200

        with Client(target, tls_ca=ca, token=TOKEN) as client:
            network = client.load_network(case.model, device="CPU", name="m")
            load.add("one connection, unary", lambda: network.infer(case.inputs))
            load.add("one connection, streams", lambda: list(network.infer_many([case.inputs] * 8)))
            load.add("a connection each", once)
            load.add("https, a connection each", https)
            end = time.monotonic() + seconds
            pause = threading.Event()
            while time.monotonic() < end:
                rotations += 1
                new = authority.server()
                both = [(certificate, new.certificate), (key, new.key)]
                for path, data in both if rotations % 2 else reversed(both):
                    replace(path, data)
                last, this = f"turn-{rotations - 1}", f"turn-{rotations}"
                replace(tokens, (entry("valid", TOKEN) + entry("turn", this)).encode())
                if rotations % 10 == 1:
                    revoked.append(refused_after(target, ca, last))
                pause.wait(1.0)  # the pace of the rotation, which is what is tested
            load.stop()
        log = server.log()
        assert server.stop() == 0, log
    print(f"\nrotations: {rotations}; revoked tokens refused after {revoked} s")
    print(f"answered: {dict(load.answered)}; failed: {len(load.failed)} {load.failed[:3]}")
    assert load.failed == []
    assert len(load.answered) == 4
    if seconds >= 60:  # the short form is for machines of any speed
        assert max(revoked) < REVOKED_SECONDS
    assert log.count("server.crt") >= min(rotations // 4, 1)
    assert "Traceback" not in log, log
