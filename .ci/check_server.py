"""Run in an environment that holds the wheel with extra `server`: it imports, starts and stops."""

from __future__ import annotations

import importlib
import json
import pkgutil
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

ROOTS = ("v1", "wire", "runtime", "server", "plugins", "client")
OPTIONAL = {"openvino", "tinygrad", "pynvml", "opentelemetry"}  # of other extras
START_SECONDS = 60.0
STOP_SECONDS = 30.0


def import_all() -> tuple[int, int]:
    """Imports every module of every root; returns how many, and how many want another extra."""
    names = []
    for root in ROOTS:
        package = importlib.import_module(f"headrace.{root}")
        names += [
            each.name for each in pkgutil.walk_packages(package.__path__, f"headrace.{root}.")
        ]
    left = 0
    for name in names:
        if name.endswith("__main__"):
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in OPTIONAL:
                raise
            left += 1
    return len(names) - left, left


def serve() -> None:
    """Starts the server, asks whether it lives, and stops it."""
    headrace = Path(sys.executable).with_name("headrace")
    command = [str(headrace), "serve", "--port", "0", "--http-port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        watchdog = threading.Timer(START_SECONDS, server.kill)
        watchdog.start()
        assert server.stdout is not None
        addresses = json.loads(server.stdout.readline())
        for path in ("/healthz", "/readyz", "/metrics"):
            url = f"http://{addresses['http']}{path}"
            with urllib.request.urlopen(url, timeout=10) as reply:
                assert reply.status == 200, path
        server.send_signal(signal.SIGTERM)
        code = server.wait(STOP_SECONDS)
        watchdog.cancel()
    if code != 0:
        sys.exit(f"the server ended with {code} after SIGTERM")


def main() -> None:
    count, left = import_all()
    serve()
    print(f"the server imports {count} modules, {left} need another extra; it answers and stops")


main()
