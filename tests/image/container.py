"""Containers of the image, run with docker or podman, or without an engine that runs here."""

from __future__ import annotations

import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, Self

USER = 10001
START_SECONDS = STOP_SECONDS = 120.0
RESTRICTED = (
    "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
    "--security-opt", "no-new-privileges",
)  # fmt: skip


class Runner(Protocol):
    """What starts a container of the image, as `docker run` does."""

    name: str

    def command(
        self,
        arguments: Sequence[str],
        *,
        volumes: Mapping[Path, str],
        environment: Mapping[str, str],
        entrypoint: str | None = None,
    ) -> list[str]:
        """The command that runs `arguments` in a container with all restrictions, in the network of
        this machine. A SIGTERM to it reaches the program, and its exit status is the program's."""
        ...

    def close(self) -> None: ...


class Engine:
    """docker or podman, its options, and options of its command `run`."""

    def __init__(self, engine: Sequence[str], options: Sequence[str], image: str) -> None:
        self.name = " ".join([*engine, "run", *options])
        self._start = [*engine, "run", "--rm", *options, *RESTRICTED, "--network", "host"]
        self._image = image

    def command(
        self,
        arguments: Sequence[str],
        *,
        volumes: Mapping[Path, str],
        environment: Mapping[str, str],
        entrypoint: str | None = None,
    ) -> list[str]:
        options = [f"--volume={folder}:{place}" for folder, place in volumes.items()]
        options += [f"--env={name}={value}" for name, value in environment.items()]
        if entrypoint is not None:
            options.append(f"--entrypoint={entrypoint}")
        return [*self._start, *options, self._image, *arguments]

    def close(self) -> None: ...


class Chroot:
    """No engine: the image's root file system, mounted by buildah and entered by Linux's own tools.
    Needs root."""

    name = "chroot"

    def __init__(self, image: str) -> None:
        self._container = _said("buildah", "from", image)
        self._root = Path(_said("buildah", "mount", self._container))
        config = json.loads(_said("buildah", "inspect", "--type", "image", image))["OCIv1"][
            "config"
        ]
        self._entrypoint: list[str] = config["Entrypoint"]
        self._environment: list[str] = config["Env"]

    def command(
        self,
        arguments: Sequence[str],
        *,
        volumes: Mapping[Path, str],
        environment: Mapping[str, str],
        entrypoint: str | None = None,
    ) -> list[str]:
        root = shlex.quote(str(self._root))
        script = ["set -e", "mount --make-rprivate /", f"mount --bind {root} {root}"]
        script += [f"mount -o remount,bind,ro {root}", f"mount -t tmpfs tmpfs {root}/tmp"]
        script += [f"mount --rbind /{name} {root}/{name}" for name in ("proc", "sys", "dev")]
        for folder, place in volumes.items():
            target = root + place.removesuffix(":ro")
            script.append(f"mount --bind {shlex.quote(str(folder))} {target}")
            if place.endswith(":ro"):
                script.append(f"mount -o remount,bind,ro {target}")
        program = self._entrypoint if entrypoint is None else [entrypoint]
        variables = [*self._environment, *(f"{key}={value}" for key, value in environment.items())]
        entered = [
            "chroot", str(self._root), "/usr/bin/setpriv", f"--reuid={USER}", f"--regid={USER}",
            "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs",
            "/usr/bin/env", "-i", *variables, *program, *arguments,
        ]  # fmt: skip
        script.append("exec " + shlex.join(entered))
        return ["unshare", "--mount", "sh", "-c", "\n".join(script)]

    def close(self) -> None:
        _said("buildah", "rm", self._container)


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _engines() -> Iterator[tuple[list[str], list[str]]]:
    """Engines with their options, the best first. podman raises limits, which nobody may without
    CAP_SYS_RESOURCE, and crun refuses some arrangements of control groups."""
    limits = ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]
    asked = os.environ.get("ENGINE")
    for engine in [asked] if asked else ["docker", "podman"]:
        if engine != "buildah":
            yield [engine], []
    if asked in (None, "podman"):
        yield ["podman"], limits
        yield ["podman", "--runtime", "runc"], limits


def find_runner(image: str) -> Runner:
    """The best that works on this machine and has the image.

    Raises:
        LookupError: nothing works; the text says why.
    """
    said = []
    for engine, options in _engines():
        if shutil.which(engine[0]) is None:
            continue
        found = Engine(engine, options, image)
        trial = found.command([], volumes={}, environment={}, entrypoint="true")
        ended = subprocess.run(trial, capture_output=True, text=True, timeout=START_SECONDS)
        if ended.returncode == 0:
            return found
        said.append(f"{found.name}: {ended.stderr.strip()}")
    if shutil.which("buildah") is not None:
        return Chroot(image)
    raise LookupError("\n".join([f"nothing here runs {image}; make image builds it", *said]))


class Serving:
    """A server in a container, ready to serve; SIGKILL ends what is left of it."""

    def __init__(self, runner: Runner, volumes: Mapping[Path, str]) -> None:
        free = {"HEADRACE_HOST": "127.0.0.1", "HEADRACE_PORT": "0", "HEADRACE_HTTP_PORT": "0"}
        command = runner.command(["serve", "--json"], volumes=volumes, environment=free)
        begin = time.monotonic()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log
        )
        addresses = json.loads(self._first_line())
        self.start_seconds = time.monotonic() - begin
        # The certificate that `headrace tls new` makes names localhost.
        self.grpc = str(addresses["grpc"]).replace("127.0.0.1", "localhost")
        self.http = str(addresses["http"]).replace("127.0.0.1", "localhost")

    def _first_line(self) -> bytes:
        stdout = self.process.stdout
        assert stdout is not None
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=START_SECONDS)
        except queue.Empty:
            line = b""
        if not line:
            self.kill()
            raise AssertionError(f"the server did not start:\n{self.log()}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()

    def log(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.terminate()
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
