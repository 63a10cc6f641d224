"""Envoy's configuration, made from the settings."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from headrace.server.settings.settings import Settings
from headrace.server.transport.limits import (
    HANDSHAKE_SECONDS,
    METADATA_BYTES,
    PING_SECONDS,
    max_connections,
    max_streams,
)

LISTENER = "grpc"
CALLS_OPEN = "http.grpc.downstream_rq_active"
_APPLICATION = "headrace.server.embedded:application"

# The bytes of a call, and of a connection, that nobody has read yet. A client that has sent as many
# waits until the methods read.
_STREAM_WINDOW = 1 << 20
_CONNECTION_WINDOW = 1 << 20
_BUFFER_BYTES = 1 << 20
_MAX_HEADERS = 64
# Envoy ends a connection on which a client updates its windows more often than 5 times, twice a
# call, and twice this number for each frame of data that Envoy has sent. Envoy's own number, 10, is
# too low: one frame can carry thousands of small messages, and gRPC may answer each with an update.
_WINDOW_UPDATES = 10_000

_API = "type.googleapis.com/envoy"


class Paths:
    """The files by which Envoy and the server talk, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.admin = folder / "admin.sock"
        self.certificate = folder / "certificate.json"
        self.client_ca = folder / "client_ca.json"


def configuration(settings: Settings, module: str, paths: Paths) -> dict[str, Any]:
    """Envoy's bootstrap configuration.

    Args:
        module: the path of the library that Envoy calls Python with.
        paths: where Envoy finds the certificates, and where its own socket is.
    """
    return {
        "node": {"id": "headrace", "cluster": "headrace"},  # needed to read certificates again
        "admin": {"address": {"pipe": {"path": str(paths.admin), "mode": 0o600}}},
        "static_resources": {"listeners": [_listener(settings, module, paths)]},
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": f"{_API}.extensions.resource_monitors.downstream_connections"
                        ".v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": max_connections(settings),
                    },
                }
            ]
        },
        **_log_format(settings),
    }


def _listener(settings: Settings, module: str, paths: Paths) -> dict[str, Any]:
    chain: dict[str, Any] = {
        "filters": [
            {
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": _http(settings, module),
            }
        ],
        "transport_socket_connect_timeout": f"{HANDSHAKE_SECONDS}s",
    }
    if settings.tls_cert is not None:
        chain["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": _tls(settings, paths),
        }
    address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][4][0]
    return {
        "name": LISTENER,
        "address": {
            "socket_address": {
                "address": address,
                "port_value": settings.port,
                "ipv4_compat": address == "::",
            }
        },
        # No other server shares the port unasked.
        "enable_reuse_port": False,
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "filter_chains": [chain],
    }


def _http(settings: Settings, module: str) -> dict[str, Any]:
    return {
        "@type": f"{_API}.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": LISTENER,
        "codec_type": "HTTP2",
        "route_config": {"virtual_hosts": [{"name": LISTENER, "domains": ["*"]}]},
        "http_filters": [_python(module)],
        "generate_request_id": False,
        "server_header_transformation": "PASS_THROUGH",
        # The caller's address is the connection's. No header of a client changes it.
        "use_remote_address": True,
        "skip_xff_append": True,
        # Only Envoy says which certificate a client has shown.
        "forward_client_cert_details": "SANITIZE_SET",
        "set_current_client_cert_details": {"cert": True},
        "max_request_headers_kb": METADATA_BYTES >> 10,
        "common_http_protocol_options": {
            "max_headers_count": _MAX_HEADERS,
            "idle_timeout": "0s",  # the pings find clients that have vanished
        },
        "request_headers_timeout": f"{HANDSHAKE_SECONDS}s",
        "stream_idle_timeout": "0s",  # a stream may be quiet, and a network may take long
        "http2_protocol_options": {
            "max_concurrent_streams": max_streams(settings),
            "initial_stream_window_size": _STREAM_WINDOW,
            "initial_connection_window_size": _CONNECTION_WINDOW,
            "max_inbound_window_update_frames_per_data_frame_sent": _WINDOW_UPDATES,
            "connection_keepalive": {
                "interval": f"{PING_SECONDS}s",
                "timeout": f"{PING_SECONDS // 3}s",
            },
        },
    }


def _python(module: str) -> dict[str, Any]:
    return {
        "name": "pyvoy",
        "typed_config": {
            "@type": f"{_API}.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter",
            "dynamic_module_config": {"module": {"local": {"filename": module}}},
            "filter_name": "pyvoy",
            "terminal_filter": True,
            "filter_config": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": json.dumps(
                    {"app": _APPLICATION, "interface": "asgi", "lifespan": True, "loop": "uvloop"}
                ),
            },
        },
    }


def _tls(settings: Settings, paths: Paths) -> dict[str, Any]:
    common: dict[str, Any] = {
        "alpn_protocols": ["h2"],
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_2",
            "tls_maximum_protocol_version": "TLSv1_3",
            "cipher_suites": [
                *("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
                *("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
            ],
        },
        "tls_certificate_sds_secret_configs": [_secret(CERTIFICATE, paths.certificate)],
    }
    if settings.tls_client_ca is not None:
        common["validation_context_sds_secret_config"] = _secret(CLIENT_CA, paths.client_ca)
    return {
        "@type": f"{_API}.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": common,
        "require_client_certificate": settings.tls_client_ca is not None,
        # A resumed session would keep the names of a certificate that is no longer accepted.
        "disable_stateless_session_resumption": True,
        "disable_stateful_session_resumption": True,
    }


CERTIFICATE = "certificate"
CLIENT_CA = "client_ca"


def _secret(name: str, path: Path) -> dict[str, Any]:
    source = {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


def secret(name: str, kind: str, content: dict[str, Any]) -> str:
    """The content of a file with a secret, which Envoy reads again when it is exchanged."""
    resource = {
        "@type": f"{_API}.extensions.transport_sockets.tls.v3.Secret",
        "name": name,
        kind: content,
    }
    return json.dumps({"resources": [resource]})


def _log_format(settings: Settings) -> dict[str, Any]:
    if settings.log_format != "json":
        return {}
    form = {"timestamp": "%Y-%m-%dT%T.%FZ", "level": "%l", "logger": "envoy", "event": "%j"}
    return {"application_log_config": {"log_format": {"json_format": form}}}
