"""What sslyze, a scanner of TLS servers, finds at both ports. ``make test-tls`` installs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.harness import BASIC, Server
from tests.support.certificates import Authority

SSLYZE = Path(os.environ.get("SSLYZE", ".venv-sslyze/bin/sslyze"))
OLD = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")
STRONG = ("_GCM_SHA256", "_GCM_SHA384", "_CHACHA20_POLY1305_SHA256")
PORTS = ("grpc", "http")


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not SSLYZE.exists():
        pytest.fail(f"{SSLYZE} is missing; run make test-tls")
    folder = tmp_path_factory.mktemp("scan")
    certificate, key = Authority().server().write(folder, "server")
    report = folder / "report.json"
    options = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with Server(*BASIC, *options) as server:
        command = [str(SSLYZE), f"--json_out={report}", server.address, server.http]
        subprocess.run(command, capture_output=True, timeout=100, check=False)
        assert server.stop() == 0, server.log()
    results = json.loads(report.read_text())["server_scan_results"]
    found = {each["server_location"]["port"]: each["scan_result"] for each in results}
    return {
        "grpc": found[int(server.address.rpartition(":")[2])],
        "http": found[int(server.http.rpartition(":")[2])],
    }


def accepted(scan: Any, version: str) -> list[str]:
    suites = scan[f"{version}_cipher_suites"]["result"]["accepted_cipher_suites"]
    return [each["cipher_suite"]["name"] for each in suites]


@pytest.mark.parametrize("port", PORTS)
def test_no_version_before_tls_1_2_is_spoken(scans: dict[str, Any], port: str) -> None:
    assert [accepted(scans[port], version) for version in OLD] == [[]] * len(OLD)


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("version", ["tls_1_2", "tls_1_3"])
def test_all_ciphers_are_strong_and_keep_past_traffic_secret(
    scans: dict[str, Any], port: str, version: str
) -> None:
    names = accepted(scans[port], version)
    print(port, version, names)
    assert names
    assert all(name.endswith(STRONG) for name in names)
    assert version == "tls_1_3" or all(name.startswith("TLS_ECDHE_") for name in names)


@pytest.mark.parametrize("port", PORTS)
def test_no_known_attack_succeeds(scans: dict[str, Any], port: str) -> None:
    scan = scans[port]
    assert not scan["heartbleed"]["result"]["is_vulnerable_to_heartbleed"]
    assert not scan["openssl_ccs_injection"]["result"]["is_vulnerable_to_ccs_injection"]
    assert not scan["tls_compression"]["result"]["supports_compression"]
    renegotiation = scan["session_renegotiation"]["result"]
    assert not renegotiation["is_vulnerable_to_client_renegotiation_dos"]
    assert scan["robot"]["result"]["robot_result"].startswith("NOT_VULNERABLE")
