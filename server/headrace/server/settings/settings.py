"""The server's settings, each declared once with default, kind of value and description."""

# ruff: noqa: RUF009 - option() returns a dataclass field, not a shared value

from __future__ import annotations

from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from headrace.server.settings.option import (
    BUDGET,
    GIB,
    HOST,
    MIB,
    MODE,
    NAMES,
    PATH,
    PLACE,
    SIZE,
    Option,
    option,
)
from headrace.server.settings.plugin_settings import PluginSettings


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one server. `load_settings` reads and validates them."""

    host: str = option(
        "127.0.0.1", "address for gRPC; 0.0.0.0 listens on all interfaces", notation=HOST
    )
    port: int = option(9000, "port for gRPC; 0 picks a free one", minimum=0, maximum=65535)
    http_host: str = option(
        "", "address for HTTP: REST, metrics and probes; default: the same as --host", notation=HOST
    )
    http_port: int = option(
        9001,
        "port for HTTP: /v2, /metrics, /healthz and /readyz; 0 picks a free one",
        minimum=0,
        maximum=65535,
    )
    unix_socket: Path | None = option(
        None,
        "path of a Unix socket for gRPC without TLS, beside --host and --port; clients on this "
        "machine call it unix:PATH",
        notation=PATH,
    )
    unix_socket_only: bool = option(
        False, "serve gRPC on --unix-socket alone, and not on --host and --port"
    )
    unix_socket_mode: int = option(
        0o600,
        "permissions of the Unix socket's file: who may write to it may connect",
        notation=MODE,
        minimum=0,
        maximum=0o777,
    )
    unix_socket_owner: str = option(
        "",
        "owner of the Unix socket's file, as chown takes it: USER, USER:GROUP or :GROUP; default: "
        "the server's own user and group",
    )
    tls_cert: Path | None = option(
        None,
        "PEM file with the server's certificate, and then those that signed it; gRPC and HTTP then "
        "speak TLS only. The files of TLS are read again when they change",
        notation=PATH,
    )
    tls_key: Path | None = option(None, "PEM file with the key of --tls-cert", notation=PATH)
    tls_client_ca: Path | None = option(
        None,
        "PEM file with authorities; each client then needs a certificate from one of them",
        notation=PATH,
    )
    config: Path | None = option(
        None, "TOML file with settings and tables for devices", notation=PATH
    )
    model_repository: Path | str | None = option(
        None,
        "model repository: a folder with a sub-folder for each network; or the address of such a "
        "folder in a store, as s3://bucket/folder, which is copied into --cache-dir",
        notation=PLACE,
    )
    repository_poll_seconds: float = option(
        0.0,
        "seconds between two looks for added, changed and removed networks in the model "
        "repository; 0: it is read at start only",
        unit="seconds",
        minimum=0,
    )
    ovms_config: Path | str | None = option(
        None,
        "config.json of OpenVINO Model Server, whose models lie in the model repository; they and "
        "its pipelines are then the networks of the repository. It may lie in the repository's "
        "folder in a store: give its address",
        notation=PLACE,
    )
    state_dir: Path | None = option(
        None,
        "folder that keeps loaded networks over a restart; default: nothing is kept",
        notation=PATH,
    )
    cache_dir: Path | None = option(
        None,
        "folder that keeps compiled networks and weights; a client's CACHE_DIR is a folder "
        "inside it",
        notation=PATH,
    )
    max_cache_bytes: int = option(
        10 * GIB,
        "disk space for compiled networks and weights; the least recently used are removed. As "
        "much again for copies of a model repository in a store; those that were read least "
        "recently are removed",
        notation=SIZE,
        minimum=MIB,
    )
    devices: tuple[str, ...] = option(
        (), "devices to offer, separated by commas; default: all", notation=NAMES
    )
    isolate_devices: bool = option(
        False,
        "run every device that computes in a process of its own; use this if people whom you do "
        "not trust load networks",
    )
    grace_seconds: float = option(
        30.0, "seconds for running requests to finish after SIGTERM", unit="seconds", minimum=0
    )
    max_message_bytes: int = option(
        64 * MIB,
        "largest gRPC message",
        notation=SIZE,
        minimum=2 * MIB,  # exported networks travel in pieces of 1 MiB
    )
    max_model_bytes: int = option(
        2 * GIB, "largest model that a client may send", notation=SIZE, minimum=MIB
    )
    max_uploads_bytes: int = option(
        8 * GIB, "disk space for all uploaded models", notation=SIZE, minimum=MIB
    )
    max_networks: int = option(256, "most networks that are loaded at a time", minimum=1)
    memory_budget: str = option(
        "",
        "memory that the networks of each device may take, as CPU=8GiB,OPENVINO=4GiB; or that all "
        "networks may take, as a part of the memory that the server may use: 75%. Networks of the "
        "repository are then loaded at their first request, and leave for others; default: no "
        "limit",
        notation=BUDGET,
    )
    evict_client_networks: bool = option(
        False,
        "let networks that clients have loaded leave for others, too; their models stay here",
    )
    front_end: str = option(
        "native",
        "what speaks gRPC on the ports: native is headrace's own HTTP/2; grpcio is gRPC's server, "
        "slower and with fewer limits, for comparison",
        choices=("native", "grpcio"),
    )
    max_load_seconds: float = option(
        600.0,
        "longest that a device's process may load or query one network; a process that takes "
        "longer is ended, and the network is refused; 0: no limit",
        unit="seconds",
        minimum=0,
    )
    max_concurrent_rpcs: int = option(
        1024,
        "most calls at a time, and as many streams and HTTP connections; one connection gets at "
        "most half",
        minimum=1,
    )
    max_streams_in_flight: int = option(
        256, "most requests in flight on one InferStream", minimum=1
    )
    max_stream_bytes: int = option(
        512 * MIB,
        "memory for the requests and unread results of all streams; one connection gets a ninth",
        notation=SIZE,
        minimum=MIB,
    )
    allow_client_shared_memory: bool = option(
        False,
        "let clients on this machine pass tensors in POSIX shared memory that their user owns, or "
        "hand memory over beside --unix-socket",
    )
    max_shared_memory_bytes: int = option(
        GIB,
        "shared memory that clients may have registered, and as much again for what requests in "
        "flight have read from it; one connection gets half",
        notation=SIZE,
        minimum=MIB,
    )
    max_state_bytes: int = option(
        GIB,
        "memory for the states of all open sequences, of all networks",
        notation=SIZE,
        minimum=MIB,
    )
    max_response_cache_bytes: int = option(
        256 * MIB,
        "memory for the kept replies of all networks with a response cache; 0 keeps none",
        notation=SIZE,
        minimum=0,
    )
    mac_key_file: Path | None = option(
        None,
        "file with the key that signs exported and cached networks; it is made if it is missing, "
        "and servers may share it; default: blob.key in the state directory, or without one a new "
        "key at each start",
        notation=PATH,
    )
    tokens: Path | None = option(
        None,
        "TOML file with the tokens and certificates that may call, and their roles; the server "
        "sees its changes; default: everybody may do everything",
        notation=PATH,
    )
    jwt_jwks: Path | None = option(
        None,
        "JSON Web Key Set with the public keys of the JWTs that may call; the server sees its "
        "changes; needs --jwt-audience",
        notation=PATH,
    )
    jwt_audience: str = option("", "audience that a JWT must name: its claim aud")
    jwt_issuer: str = option(
        "", "issuer that a JWT must name: its claim iss; default: any with a key in the file"
    )
    jwt_roles_claim: str = option(
        "roles", "claim of a JWT with its roles; dots lead into nested claims"
    )
    open_metrics: bool = option(
        False, "let anybody read /metrics; otherwise the role read is needed"
    )
    audit_log: Path | None = option(
        None,
        "file that gets a JSON line for each managing call and each refused one",
        notation=PATH,
    )
    allow_insecure: bool = option(
        False,
        "listen beyond this machine without TLS or without access control, for example behind a "
        "proxy that does both",
    )
    private_networks: bool = option(
        False,
        "a client sees and uses only the networks that it loaded itself, and those of the "
        "repository",
    )
    operators: tuple[str, ...] = option(
        (),
        "with --private-networks: identities that see and change all networks and devices, as "
        "token:NAME, separated by commas",
        notation=NAMES,
    )
    rate_limit: int = option(
        0,
        "most requests a second of one client, which is an identity, or an address without one; "
        "0: no limit",
        minimum=0,
    )
    max_in_flight_per_client: int = option(
        0, "most requests in flight of one client, on all its connections; 0: no limit", minimum=0
    )
    max_networks_per_client: int = option(
        0, "with --private-networks: most networks of one client; 0: no limit", minimum=0
    )
    max_model_bytes_per_client: int = option(
        0,
        "with --private-networks: most bytes of models that one client has loaded, and as much "
        "again for what it has uploaded; 0: no limit",
        notation=SIZE,
        minimum=0,
    )
    otlp_endpoint: str = option(
        "",
        "URL of a collector that gets traces, for example http://localhost:4317; needs the extra "
        "otel; default: that of OTEL_EXPORTER_OTLP_ENDPOINT, or no traces",
    )
    trace_sample_ratio: float = option(
        1.0,
        "part of the calls that are traced, from 0 to 1, if there is a collector",
        minimum=0,
        maximum=1,
    )
    trust_trace_parents: bool = option(
        False,
        "trace each call that its caller traces, however many; otherwise --trace-sample-ratio "
        "bounds these calls too",
    )
    log_level: str = option(
        "info", "lowest level that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = option("text", "format of the log: text or json", choices=("text", "json"))
    slow_request_seconds: float = option(
        0.0,
        "log each request that takes this many seconds or longer, with its time in the queue and "
        "in execution; 0: none",
        unit="seconds",
        minimum=0,
    )
    plugins: tuple[PluginSettings, ...] = ()

    @property
    def has_access_control(self) -> bool:
        """Whether callers need a credential: a token, a JWT or a client certificate."""
        return any((self.tokens, self.jwt_jwks, self.tls_client_ca))

    def __post_init__(self) -> None:
        if not self.http_host:
            object.__setattr__(self, "http_host", self.host)


def options() -> tuple[Option, ...]:
    """Every option of `Settings`, in the order of their declaration."""
    return tuple(
        Option(declared.name.upper(), _kind(declared), declared.default, **declared.metadata)
        for declared in fields(Settings)
        if declared.metadata
    )


def _kind(declared: Field[Any]) -> Any:
    notation = declared.metadata.get("notation")
    return notation.kind if notation else type(declared.default)
