"""One identity asks for ten thousand of each thing, while another one works: `make exhaust`.

Each thing is asked for from a server without limits of the system, and from servers that soon run
out of descriptors, of address space, or of threads. The other identity's requests have to succeed
all the time. Whoever asks for too much is refused with RESOURCE_EXHAUSTED, or has its connections
closed. After it has left, the server has no more descriptors, threads and memory than before, and
serves the next thing.

The limit on threads needs root and setpriv, because Linux puts no limit on root's threads.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from headrace.testing.networks import add, endless
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import Server
from tests.support.stateful import SUM, SUM_STATES
from tests.support.tokens import entry
from tools.exhaust.things import DESERVED, THINGS

LIMITS: Final = ("nothing", "descriptors", "memory", "threads")
SPARE_DESCRIPTORS: Final = 100
SPARE_BYTES: Final = 192 * 2**20
THREADS: Final = 24
"""The server has 11 when nobody has asked for anything."""
USER: Final = "65533"
"""Who runs the server with few threads: somebody who has no other thread."""

LEFT_DESCRIPTORS: Final = 10
LEFT_THREADS: Final = 64
"""The server's pools keep their threads."""
LEFT_BYTES: Final = 100 * 2**20
BACK_SECONDS: Final = 60.0
_BUG: Final = "code=INTERNAL"


class Victim:
    """Asks again and again, from a process of its own."""

    def __init__(self, server: Server, token: str) -> None:
        command = [sys.executable, "-m", "tools.exhaust.victim", server.address, token]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.outcomes: dict[str, int] = {}
        self.longest = 0.0

    def end(self) -> None:
        told, _ = self._process.communicate("")
        found = json.loads(told)
        self.outcomes, self.longest = found["outcomes"], found["longest"]


class Used:
    """What the server's process has of what a system can run out of."""

    def __init__(self, process: psutil.Process) -> None:
        self.descriptors = process.num_fds()
        self.threads = process.num_threads()
        self.bytes = process.memory_info().rss

    def more_than(self, before: Used) -> list[str]:
        found = []
        if self.descriptors > before.descriptors + LEFT_DESCRIPTORS:
            found.append(f"{self.descriptors - before.descriptors} descriptors are left")
        if self.threads > before.threads + LEFT_THREADS:
            found.append(f"{self.threads - before.threads} threads are left")
        if self.bytes > before.bytes + LEFT_BYTES:
            found.append(f"{(self.bytes - before.bytes) >> 20} MB are left")
        return found


@contextmanager
def limited(limit: str) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server that has little left of one thing, and the tokens of its callers."""
    tokens = {
        each: f"{each}-token-of-a-test-0123456789" for each in ("taker", "victim", "operator")
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "tokens.toml"
        file.write_text(
            "".join(entry(name, token, "infer", "manage") for name, token in tokens.items())
        )
        file.chmod(0o644)
        caller = ["prlimit", f"--nproc={THREADS}", "setpriv", f"--reuid={USER}", "--clear-groups"]
        able = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        with Server(
            "--devices",
            "CPU,TEMPLATE",
            "--tokens",
            str(file),
            "--allow-client-shared-memory",
            "--private-networks",
            "--operators",
            "token:operator",
            before=[*caller, *able] if limit == "threads" else [],
        ) as server:
            pid = server.process.pid
            load(server, tokens["operator"])
            process = psutil.Process(pid)
            hard = resource.RLIM_INFINITY
            if limit == "descriptors":
                most = process.num_fds() + SPARE_DESCRIPTORS
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
            elif limit == "memory":
                most = process.memory_info().vms + SPARE_BYTES
                resource.prlimit(pid, resource.RLIMIT_AS, (most, hard))
            yield server, tokens


def load(server: Server, token: str) -> None:
    """Loads what the things need."""
    for model, name, device, config in (
        (add().model, "add", "CPU", {}),
        (endless().model, "endless", "TEMPLATE", {}),
        (SUM, "sum", "CPU", {"STATES": SUM_STATES}),
    ):
        source = pb.ModelSource(data=model.SerializeToString())
        request = pb.LoadNetworkRequest(name=name, model=source, device=device, config=config)
        metadata = (("authorization", f"Bearer {token}"),)
        server.stub.LoadNetwork(request, metadata=metadata, timeout=60)


def attempt(server: Server, tokens: dict[str, str], name: str, many: int) -> list[str]:
    """Asks for many of one thing; what is wrong then."""
    process = psutil.Process(server.process.pid)
    victim = Victim(server, tokens["victim"])
    before = Used(process)
    began = time.monotonic()
    command = [sys.executable, "-m", "tools.exhaust.things", server.address, server.http]
    taken = subprocess.run(
        [*command, tokens["taker"], name, str(many)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    outcomes: dict[str, int] = json.loads(taken.stdout or '{"nothing": 1}')
    took = time.monotonic() - began
    wrong = [f"the taker got {code}" for code in outcomes if code not in DESERVED]
    end = time.monotonic() + BACK_SECONDS
    while (left := Used(process).more_than(before)) and time.monotonic() < end:
        time.sleep(0.2)
    victim.end()
    bad = {code: count for code, count in victim.outcomes.items() if code != "OK"}
    wrong += left + [f"the victim got {count} times {code}" for code, count in bad.items()]
    after = Used(process)
    print(
        f"  {name:12} {took:5.1f} s  taker {dict(outcomes)}  "
        f"victim {victim.outcomes.get('OK', 0)} OK, "
        f"longest {victim.longest:.2f} s  descriptors {before.descriptors} → {after.descriptors}, "
        f"threads {before.threads} → {after.threads}, "
        f"{before.bytes >> 20} → {after.bytes >> 20} MB  {'; '.join(wrong)}",
        flush=True,
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="make exhaust")
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--limit", choices=LIMITS, action="append")
    parser.add_argument("--thing", choices=[*THINGS], action="append")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    many = min(options.many, most - 1000)
    return 1 if all_limits(options.limit or LIMITS, options.thing or THINGS, many) else 0


def all_limits(limits: Sequence[str], things: Iterable[str], many: int) -> int:
    """How many things are wrong."""
    wrong = 0
    for limit in limits:
        if limit == "threads" and (os.getuid() or shutil.which("setpriv") is None):
            print("a limit on threads needs root and setpriv: left out")
            continue
        print(f"little is left of {limit}:", flush=True)
        with limited(limit) as (server, tokens):
            for name in things:
                wrong += len(attempt(server, tokens, name, many))
                if server.process.poll() is not None:
                    print(f"  the server has ended:\n{server.log()[-3000:]}")
                    wrong += 1
                    break
            log = server.log()
            if _BUG in log:  # what the server runs out of is a warning
                wrong += 1
                print("  the log has a bug:", log[log.index(_BUG) :][:3000])
    return wrong


if __name__ == "__main__":
    sys.exit(main())
