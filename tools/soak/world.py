"""The server under soak, its files, and the client processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from headrace.server.access.token_file import add_token
from tests.integration.harness import Server
from tests.integration.test_repository import adds
from tests.support.certificates import Authority
from tools.soak import ledger
from tools.soak.caller import PAUSE, RUN, STOP, Phase, Place
from tools.soak.client import PROCESSES
from tools.soak.networks import Target, targets

DISK_BYTES = 64 << 20
PATIENCE_SECONDS = 300.0
REPOSITORY = Path(__file__).parents[2]


class World:
    """Everything that runs. Belongs to the soak's thread; the watch reads from it.

    Args:
        folder: an empty folder for all files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.disk = folder / "disk"
        self.disk_is_small = _mount(self.disk)
        for each in ("clients", "temporary", "repository/canary/1"):
            (folder / each).mkdir(parents=True)
        self.tokens = folder / "tokens.toml"
        token = add_token(self.tokens, "steady", ["manage"])
        self.put_version(1)
        (folder / "repository/canary/network.toml").write_text('device = "CPU"\n')
        self.authority.write(folder)
        self.renew_certificate()
        self.server = Server(
            "--tls-cert",
            str(folder / "server.crt"),
            "--tls-key",
            str(folder / "server.key"),
            "--tokens",
            str(self.tokens),
            "--audit-log",
            str(self.disk / "audit.jsonl"),
            "--state-dir",
            str(self.disk / "state"),
            "--cache-dir",
            str(self.disk / "cache"),
            "--model-repository",
            str(folder / "repository"),
            "--repository-poll-seconds",
            "0.5",
            "--allow-client-shared-memory",
            "--log-format",
            "json",
            "--max-cache-bytes",
            str(16 << 20),
            environment={"TMPDIR": str(folder / "temporary")},
        )
        address = self.server.address.replace("127.0.0.1", "localhost")
        facts = {"target": address, "http": self.server.http, "token": token}
        (folder / "place.json").write_text(json.dumps(facts))
        self.place = Place.read(folder)
        self.phase = Phase(folder / "phase", create=True)
        self.process = psutil.Process(self.server.process.pid)
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        self._number = 0
        with self.place.client() as client:
            self.devices = [each.name for each in client.devices() if each.state == "UP"]
        self.targets = targets(self.devices)

    # -- files --

    def put_version(self, version: int) -> None:
        """A version of the network canary, which adds its number. Earlier ones but one go."""
        root = self.folder / "repository" / "canary"
        beside = self.folder / "beside"
        beside.mkdir()
        (beside / "model.onnx").write_bytes(adds(version))
        if (root / str(version)).exists():
            shutil.rmtree(root / str(version))
        beside.rename(root / str(version))
        shutil.rmtree(root / str(version - 2), ignore_errors=True)

    def renew_certificate(self) -> None:
        """Another certificate and key; each file is replaced whole, one after the other."""
        new = self.authority.server()
        for name, data in (("server.crt", new.certificate), ("server.key", new.key)):
            path = self.folder / name
            beside = path.with_suffix(".new")
            beside.write_bytes(data)
            beside.replace(path)

    # -- the server --

    def load(self, target: Target) -> None:
        with self.place.client() as client:
            client.load_network(
                target.case.model,
                device=target.device,
                name=target.name,
                config=dict(target.config),
                affinities=dict(target.affinities),
                timeout=300.0,
            )

    def scrape(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every sample by name and sorted labels."""
        context = ssl.create_default_context(cafile=self.place.ca)
        request = urllib.request.Request(
            f"https://{self.place.http}/metrics", headers=dict(self.place.metadata)
        )
        with urllib.request.urlopen(request, timeout=60, context=context) as reply:
            text = reply.read().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def workers(self) -> dict[str, psutil.Process]:
        """The processes of devices that have loaded their backend, by the device."""
        found = {}
        for each in self.process.children():
            try:
                maps = Path(f"/proc/{each.pid}/maps").read_text()
            except OSError:
                continue
            if "libopenvino" in maps:  # which looks for OpenCL's devices, too
                found["OPENVINO"] = each
            elif "libOpenCL" in maps:
                found["OPENCL"] = each
        return found

    # -- clients --

    def start(self, name: str) -> None:
        """Starts a client process; with its name, and a number of its own."""
        self._number += 1
        own = f"{name}-{self._number}"
        log = (self.folder / "clients" / f"{own}.log").open("wb")
        command = [sys.executable, "-m", "tools.soak.client", str(self.folder), own]
        with log:
            self._clients[name] = subprocess.Popen(
                [*command, ",".join(self.devices)], cwd=REPOSITORY, stderr=log, stdout=log
            )

    def start_all(self) -> None:
        """Starts all clients, and returns once each of them has sent requests."""
        for name in PROCESSES:
            self.start(name)
        patiently(lambda: all(map(self.calls, PROCESSES)), "clients to call")

    def calls(self, name: str) -> bool:
        """Whether the newest process of this name has sent requests of each kind."""
        counts = self.newest(name)
        return bool(counts) and all(each[ledger.End.SENT] for each in counts.values())

    def newest(self, name: str) -> ledger.Counts:
        """What the newest process of this name has counted."""
        found = (self.folder / "clients").glob(f"{name}-*.counts")
        return ledger.read(max(found, key=_number, default=self.folder))

    def kill(self, name: str) -> None:
        process = self._clients.pop(name)
        process.kill()
        process.wait(60)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._clients[name].send_signal(number)

    def counts(self) -> dict[str, ledger.Counts]:
        """What each client process has counted, those of the past too."""
        return {each.stem: ledger.read(each) for each in (self.folder / "clients").glob("*.counts")}

    def living(self) -> dict[str, int]:
        """The client processes that run, each with its process id."""
        return {name: each.pid for name, each in self._clients.items() if each.poll() is None}

    def ended(self) -> list[str]:
        """Client processes that have ended although nobody has ended them."""
        return [f"the client {name} has ended" for name in self._clients.keys() - self.living()]

    def errors(self) -> list[tuple[str, dict[str, Any]]]:
        """The errors that clients have noted, each with its process."""
        return [(name, each) for name, each in self.notes() if "code" in each]

    def notes(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            (path.stem, json.loads(line))
            for path in sorted((self.folder / "clients").glob("*.jsonl"))
            for line in path.read_text().splitlines()
            if line.endswith("}")  # a process that was killed may have left half a line
        ]

    # -- phases --

    def pause(self) -> None:
        """Has all clients end what they have in flight and wait."""
        self.phase.set(PAUSE)
        patiently(lambda: not any(map(self._has_in_flight, self.living())), "clients to pause")

    def _has_in_flight(self, name: str) -> bool:
        return any(map(ledger.in_flight, self.newest(name).values()))

    def resume(self) -> None:
        self.phase.set(RUN)

    def stop_clients(self) -> list[str]:
        """Ends all clients; returns what went wrong."""
        self.phase.set(STOP)
        wrong = []
        for name, process in self._clients.items():
            try:
                if process.wait(120):
                    wrong.append(f"the client {name} ended with {process.returncode}")
            except subprocess.TimeoutExpired:
                process.kill()
                wrong.append(f"the client {name} did not end")
        self._clients.clear()
        return wrong

    def close(self) -> None:
        """Ends what still runs, and gives the small disk back."""
        for process in self._clients.values():
            process.kill()
        self.server.__exit__(None, None, None)
        if self.disk_is_small:
            for _ in range(50):
                if not subprocess.run(["umount", str(self.disk)], check=False).returncode:
                    break
                time.sleep(0.1)


def patiently(condition: Callable[[], object], what: str) -> None:
    """Waits for a state for longer than a test would: the machine is meant to be busy.

    Raises:
        AssertionError: it did not come.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _mount(folder: Path) -> bool:
    """A disk of `DISK_BYTES` at the folder; False where that is not allowed."""
    folder.mkdir(parents=True)
    if os.getuid():
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
