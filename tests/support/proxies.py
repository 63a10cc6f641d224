"""Proxies for HTTP/2, where they are installed: nginx, HAProxy, and Envoy, which
`make test-clients` installs.

Imports nothing of headrace, so that clients of others can be tested through them, too."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.ports import held_port

_CLIENTS: Final = Path(__file__).parents[2] / ".venv-clients/bin"
_NGINX: Final = """
pid {folder}/pid; error_log stderr; daemon off;
events {{ worker_connections 256; }}
http {{
    access_log off; client_max_body_size 0; client_body_temp_path {folder}/body;
    server {{
        listen 127.0.0.1:{port} http2; keepalive_requests {calls};
        large_client_header_buffers 4 32k;
        location / {{ grpc_pass grpc://{server}; }}
    }}
}}
"""
_HAPROXY: Final = """
global
    tune.bufsize 65536
defaults
    mode http
    timeout connect 10s
    timeout client 1m
    timeout server 1m
listen proxy
    bind 127.0.0.1:{port} proto h2
    server one {server} proto h2
"""
_TYPES: Final = "type.googleapis.com/envoy.extensions"
_ENVOY: Final = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: calls
          codec_type: HTTP2
          common_http_protocol_options: {{max_requests_per_connection: {calls}}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: server, timeout: 0s}}}}]
          http_filters:
          - name: router
            typed_config: {{"@type": {types}.filters.http.router.v3.Router}}
  clusters:
  - name: server
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {types}.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    load_assignment:
      cluster_name: server
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{socket_address: {{address: {host}, port_value: {server_port}}}}}
"""
_KINDS: Final = {
    "nginx": (_NGINX, ("-p", "{folder}", "-e", "stderr", "-c", "{file}"), "apt-get install nginx"),
    "haproxy": (_HAPROXY, ("-db", "-f", "{file}"), "apt-get install haproxy"),
    "envoy": (
        _ENVOY,
        ("-c", "{file}", "--concurrency", "1", "--use-dynamic-base-id", "-l", "error"),
        "`make test-clients` installs it",
    ),
}
NAMES: Final = tuple(_KINDS)


class Proxy:
    """A proxy that leads to one server.

    Attributes:
        address: where it listens.
    """

    def __init__(self, command: list[str], address: str) -> None:
        self.address = address
        self._command = command
        self.process = self._started()

    def restart(self) -> None:
        """Kills it, and starts it again at the same address."""
        self.stop()
        self.process = self._started()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE_SECONDS
        host, _, port = self.address.rpartition(":")
        while True:
            try:
                socket.create_connection((host, int(port))).close()
            except OSError:
                assert process.poll() is None, "the proxy has ended"
                assert time.monotonic() < until, "the proxy does not listen"
                time.sleep(0.01)
            else:
                return process


@contextmanager
def proxied(name: str, server: str, folder: Path, calls: int = 1_000_000) -> Iterator[Proxy]:
    """A proxy that runs.

    Args:
        server: its address.
        calls: after how many calls nginx and Envoy end a connection.
    """
    text, options, remedy = _KINDS[name]
    program = shutil.which(name) or shutil.which(name, path=f"/usr/sbin:{_CLIENTS}")
    if program is None:
        pytest.skip(f"{name} not found: {remedy}")
    port = held_port()
    host, _, server_port = server.rpartition(":")
    file = folder / f"{name}.yaml"  # Envoy looks at the suffix
    file.write_text(
        text.format(
            folder=folder,
            port=port,
            server=server,
            host=host,
            server_port=server_port,
            calls=calls,
            types=_TYPES,
        )
    )
    command = [program, *(each.format(folder=folder, file=file) for each in options)]
    proxy = Proxy(command, f"127.0.0.1:{port}")
    try:
        yield proxy
    finally:
        proxy.stop()
