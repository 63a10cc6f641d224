"""What all tests begin with, whatever the shell that runs them: a job in the background ignores
Ctrl-C, and an environment may name proxies, colours, or settings of a server."""

from __future__ import annotations

import os
import re
import signal

# What would change what the programs say or do; tests that mean one of these set it themselves.
_INHERITED = re.compile(
    r"HEADRACE_\w+|(\w+_)?proxy|NO_COLOR|FORCE_COLOR|CLICOLOR\w*|COLUMNS|LINES|TERM|LANG|LANGUAGE|"
    r"LC_\w+|TZ|TERMINAL_WIDTH|_TYPER_\w+|PYTHON(?!PATH)\w+|MAKEFLAGS|GIT_\w+|CACHEDB|POCL_CACHE_DIR|"
    r"ONEDNN_\w+|DNNL_\w+|OMP_\w+|SSL_\w+|GRPC_\w+",
    re.IGNORECASE,
)


def pytest_configure() -> None:
    for name in [name for name in os.environ if _INHERITED.fullmatch(name)]:
        del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.default_int_handler)
