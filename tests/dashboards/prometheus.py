"""A Prometheus with the deployed configuration and rules, and what it answers."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from tests.integration.harness import CALL_SECONDS, until
from tests.support.queries import DEPLOY

CONFIGURATION = DEPLOY / "prometheus" / "prometheus.yml"


def configuration(target: str, ca: Path, **job: Any) -> dict[str, Any]:
    """The deployed configuration for a server elsewhere, scraped every two seconds.

    Args:
        target: the server's ``host:port``.
        ca: the authority that signed its certificate.
        job: what to add to the job.
    """
    found: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text("utf-8"))
    found["global"] = {"scrape_interval": "2s", "evaluation_interval": "2s"}
    found["rule_files"] = [str(CONFIGURATION.parent / each) for each in found["rule_files"]]
    (only,) = found["scrape_configs"]
    assert only["tls_config"]["ca_file"] == "/secrets/ca.crt"
    assert only["static_configs"] == [{"targets": ["headrace:9001"]}]
    only["tls_config"]["ca_file"] = str(ca)
    only["static_configs"] = [{"targets": [target]}]
    only.update(job)
    return found


class Prometheus:
    """A Prometheus of its own, as a process. Leaving the context ends it.

    Args:
        folder: for its configuration, its log and its data.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(configuration))
        program = shutil.which("prometheus")
        assert program, "prometheus is missing: apt-get install prometheus"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = psutil.Popen(
                [
                    program,
                    f"--config.file={file}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._address = ""

    def __enter__(self) -> Self:
        try:
            until(self._listens, f"Prometheus was to listen: {self._log}")
            until(self._ready, f"Prometheus was to be ready: {self._log}")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def ask(self, path: str, **parameters: Any) -> Any:
        """The data that a path of the API answers with.

        Raises:
            AssertionError: it is an error.
        """
        data = urllib.parse.urlencode(parameters).encode() or None
        try:
            with urllib.request.urlopen(self._address + path, data, CALL_SECONDS) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def has(self, query: str) -> bool:
        """Whether any series of the result has a value that is a number."""
        found = self.ask("/api/v1/query", query=query)
        many = found["resultType"] == "vector"
        samples = [each["value"] for each in found["result"]] if many else [found["result"]]
        return any(not math.isnan(float(value)) for _, value in samples)

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        for each in self._process.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN:
                self._address = f"http://127.0.0.1:{each.laddr.port}"
        return bool(self._address)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready", timeout=CALL_SECONDS):
                return True
        except urllib.error.URLError:
            return False

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait(CALL_SECONDS)
