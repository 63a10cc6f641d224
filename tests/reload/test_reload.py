"""A reload every second under load: no request fails. ``make test-reload``; RELOAD_SECONDS says how
long, by default 120."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.client import Client, errors
from headrace.client.sync import Network
from tests.integration.harness import BASIC, CALL_SECONDS, Server
from tests.integration.test_repository import Folder, X, adds, until_ready

SECONDS = float(os.environ.get("RELOAD_SECONDS", "120"))
BATCH = 16


class Load:
    """Calls without a pause, each from a thread of its own, until it is over."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.failed: list[str] = []
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, kind: str, call: Callable[[], int]) -> None:
        def run() -> None:
            while not self._over.is_set():
                try:
                    self.answered[kind] += call()
                except errors.Error as error:
                    self.failed.append(f"{kind}: {error.code.name}: {error}")

        self._threads.append(threading.Thread(target=run))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(CALL_SECONDS)


def unary(network: Network) -> int:
    network.infer({"x": X})
    return 1


def streamed(network: Network) -> int:
    for _, outputs in network.infer_many([{"x": X}] * BATCH):
        if isinstance(outputs, errors.Error):
            raise outputs
    return BATCH


def summed(server: Server) -> dict[str, float]:
    found: dict[str, float] = {}
    for (name, labels), value in server.scrape().items():
        if name == "headrace_network_requests_total":
            outcome = dict(labels)["outcome"]
            found[outcome] = found.get(outcome, 0.0) + value
    return found


@pytest.mark.timeout(SECONDS + 120)
def test_no_request_fails_while_the_network_is_reloaded_every_second(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "repository")
    folder.put("m", 1)
    folder.put("m", 2)
    folder.describe("m", 'version_policy = "all"\n[warmup]\ncount = 2\n')
    options = ("--model-repository", str(folder.root), "--repository-poll-seconds", "0.5")
    load, reloads, rounds = Load(), Counter[str](), 0
    with Server(*BASIC, *options) as server, Client(server.address) as client:
        until_ready(client, "m", 1, 2)
        network = client.network("m")
        load.add("unary", lambda: unary(network))
        load.add("unary of version 1", lambda: unary(client.network("m", version="1")))
        load.add("streamed", lambda: streamed(network))
        load.start()
        end = time.monotonic() + SECONDS
        pause = threading.Event()
        first = client.network("m").info.generation
        while time.monotonic() < end:
            rounds += 1
            kind = rounds % 4
            if kind == 0:
                folder.put("m", 2, adds(2) + b"")
                reloads["written"] += 1
            elif kind == 1:
                folder.rename_into_place("m", 1, adds(1))
                reloads["renamed"] += 1
            elif kind == 2:
                client.load_network(repository="m", replace=True)
                reloads["by a client"] += 1
            else:
                network.set_traffic({"1": 50, "2": 50} if rounds % 8 == 3 else {})
                reloads["traffic"] += 1
            pause.wait(1.0)  # the pace of the reloads, which is what is tested
        load.stop()
        generation = client.network("m").info.generation
        outcomes = summed(server)
        loaded = server.log().count("is loaded on")
        memory = server.total("process_resident_memory_bytes") / 2**20
        assert server.stop() == 0
    print(
        f"\nreloads: {dict(reloads)}; networks loaded: {loaded}; generations {first}-{generation}"
    )
    print(f"answered: {dict(load.answered)}; failed: {len(load.failed)}; memory {memory:.0f} MiB")
    print(f"the server's count of what is still loaded: {outcomes}")
    assert load.failed == []
    assert all(load.answered.values())
    assert len(load.answered) == 3
    assert loaded > rounds / 2
    assert np.isclose(outcomes.get("failed", 0), 0)
