"""`headrace tls new` makes certificates that TLS accepts for the right hosts only."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.server.transport.new_certificates import FILES, app


def made(folder: Path, *options: str) -> None:
    result = CliRunner().invoke(app, ["new", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert "90 days" in result.output


def greet(folder: Path, host: str) -> str | None:
    """Lets a client and a server greet each other; the protocol that they speak."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(folder / "server.crt", folder / "server.key")
    theirs = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = theirs.wrap_bio(down, up, server_hostname=host)
    server = ours.wrap_bio(up, down, server_side=True)
    waiting = [client, server]
    for _ in range(8):
        for each in list(waiting):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(each)
    assert not waiting
    return client.version()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "gpu.example", "10.1.2.3"])
def test_a_client_that_trusts_the_authority_reaches_the_server(tmp_path: Path, host: str) -> None:
    made(tmp_path / "new", "--host", "gpu.example", "--host", "10.1.2.3")
    assert greet(tmp_path / "new", host) == "TLSv1.3"


def test_a_client_refuses_the_server_under_another_name(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'gpu\.example'"):
        greet(tmp_path, "gpu.example")


def test_only_the_owner_reads_the_key_and_the_authority_s_key_is_not_kept(tmp_path: Path) -> None:
    made(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(FILES)
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", FILES)
def test_no_file_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    result = CliRunner().invoke(app, ["new", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{name} exists" in result.output
    assert [each.read_text() for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("host", ["", "a b", "https://gpu.example", "gpu:9000", "gpü"])
def test_a_host_that_no_certificate_can_name_is_refused(tmp_path: Path, host: str) -> None:
    result = CliRunner().invoke(app, ["new", str(tmp_path), "--host", host])
    assert result.exit_code == 1
    assert "neither a host's name nor an address" in result.output
    assert not list(tmp_path.iterdir())
