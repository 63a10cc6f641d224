"""The server's settings, each declared once with default, kind of value and description."""

# ruff: noqa: RUF009 - option() returns a dataclass field, not a shared value

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from headrace.server.settings.option import (
    GIB,
    HOST,
    MIB,
    MODE,
    NAMES,
    PATH,
    RATIO,
    SECONDS,
    SWITCH,
    TEXT,
    Option,
    choice,
    integer,
    option,
    size,
)
from headrace.server.settings.plugin_settings import PluginSettings

PORT = integer(0, 65535)
COUNT = integer(1)
LIMIT = integer(0)
SIZE = size(MIB)
MESSAGE = size(2 * MIB)  # exported networks travel in pieces of 1 MiB


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one server. `load_settings` reads and validates them."""

    host: str = option("127.0.0.1", HOST, "address for gRPC; 0.0.0.0 listens on all interfaces")
    port: int = option(9000, PORT, "port for gRPC; 0 picks a free one")
    http_host: str = option(
        "", HOST, "address for HTTP: REST, metrics and probes; default: the same as --host"
    )
    http_port: int = option(
        9001, PORT, "port for HTTP: /v2, /metrics, /healthz and /readyz; 0 picks a free one"
    )
    unix_socket: Path | None = option(
        None,
        PATH,
        "path of a Unix socket for gRPC without TLS, beside --host and --port; clients on this "
        "machine call it unix:PATH",
    )
    unix_socket_only: bool = option(
        False, SWITCH, "serve gRPC on --unix-socket alone, and not on --host and --port"
    )
    unix_socket_mode: int = option(
        0o600,
        MODE,
        "permissions of the Unix socket's file: who may write to it may connect",
    )
    unix_socket_owner: str = option(
        "",
        TEXT,
        "owner of the Unix socket's file, as chown takes it: USER, USER:GROUP or :GROUP; default: "
        "the server's own user and group",
    )
    tls_cert: Path | None = option(
        None,
        PATH,
        "PEM file with the server's certificate, and then those that signed it; gRPC and HTTP then "
        "speak TLS only. The files of TLS are read again when they change",
    )
    tls_key: Path | None = option(None, PATH, "PEM file with the key of --tls-cert")
    tls_client_ca: Path | None = option(
        None,
        PATH,
        "PEM file with authorities; each client then needs a certificate from one of them",
    )
    config: Path | None = option(None, PATH, "TOML file with settings and tables for devices")
    model_repository: Path | None = option(
        None, PATH, "model repository: a folder with a sub-folder for each network"
    )
    repository_poll_seconds: float = option(
        0.0,
        SECONDS,
        "seconds between two looks for added, changed and removed networks in the model "
        "repository; 0: it is read at start only",
    )
    state_dir: Path | None = option(
        None, PATH, "folder that keeps loaded networks over a restart; default: nothing is kept"
    )
    cache_dir: Path | None = option(
        None,
        PATH,
        "folder that keeps compiled networks; a client's CACHE_DIR is a folder inside it",
    )
    max_cache_bytes: int = option(
        10 * GIB, SIZE, "disk space for compiled networks; the least recently used are removed"
    )
    devices: tuple[str, ...] = option(
        (), NAMES, "devices to offer, separated by commas; default: all"
    )
    isolate_devices: bool = option(
        False,
        SWITCH,
        "run every device that computes in a process of its own; use this if people whom you do "
        "not trust load networks",
    )
    grace_seconds: float = option(
        30.0, SECONDS, "seconds for running requests to finish after SIGTERM"
    )
    max_message_bytes: int = option(64 * MIB, MESSAGE, "largest gRPC message")
    max_model_bytes: int = option(2 * GIB, SIZE, "largest model that a client may send")
    max_uploads_bytes: int = option(8 * GIB, SIZE, "disk space for all uploaded models")
    max_networks: int = option(256, COUNT, "most networks that are loaded at a time")
    front_end: str = option(
        "native",
        choice("native", "grpcio"),
        "what speaks gRPC on the ports: native is headrace's own HTTP/2; grpcio is gRPC's server, "
        "slower and with fewer limits, for comparison",
    )
    max_load_seconds: float = option(
        600.0,
        SECONDS,
        "longest that a device's process may load or query one network; a process that takes "
        "longer is ended, and the network is refused; 0: no limit",
    )
    max_concurrent_rpcs: int = option(
        1024,
        COUNT,
        "most calls at a time, and as many streams and HTTP connections; one connection gets at "
        "most half",
    )
    max_streams_in_flight: int = option(256, COUNT, "most requests in flight on one InferStream")
    max_stream_bytes: int = option(
        512 * MIB,
        SIZE,
        "memory for the requests and unread results of all streams; one connection gets a ninth",
    )
    allow_client_shared_memory: bool = option(
        False,
        SWITCH,
        "let clients on this machine pass tensors in POSIX shared memory that their user owns, or "
        "hand memory over beside --unix-socket",
    )
    max_shared_memory_bytes: int = option(
        GIB,
        SIZE,
        "shared memory that clients may have registered, and as much again for what requests in "
        "flight have read from it; one connection gets half",
    )
    max_state_bytes: int = option(
        GIB, SIZE, "memory for the states of all open sequences, of all networks"
    )
    mac_key_file: Path | None = option(
        None,
        PATH,
        "file with the key that signs exported and cached networks; it is made if it is missing, "
        "and servers may share it; default: blob.key in the state directory, or without one a new "
        "key at each start",
    )
    tokens: Path | None = option(
        None,
        PATH,
        "TOML file with the tokens and certificates that may call, and their roles; the server "
        "sees its changes; default: everybody may do everything",
    )
    jwt_jwks: Path | None = option(
        None,
        PATH,
        "JSON Web Key Set with the public keys of the JWTs that may call; the server sees its "
        "changes; needs --jwt-audience",
    )
    jwt_audience: str = option("", TEXT, "audience that a JWT must name: its claim aud")
    jwt_issuer: str = option(
        "", TEXT, "issuer that a JWT must name: its claim iss; default: any with a key in the file"
    )
    jwt_roles_claim: str = option(
        "roles", TEXT, "claim of a JWT with its roles; dots lead into nested claims"
    )
    open_metrics: bool = option(
        False, SWITCH, "let anybody read /metrics; otherwise the role read is needed"
    )
    audit_log: Path | None = option(
        None, PATH, "file that gets a JSON line for each managing call and each refused one"
    )
    allow_insecure: bool = option(
        False,
        SWITCH,
        "listen beyond this machine without TLS or without access control, for example behind a "
        "proxy that does both",
    )
    private_networks: bool = option(
        False,
        SWITCH,
        "a client sees and uses only the networks that it loaded itself, and those of the "
        "repository",
    )
    operators: tuple[str, ...] = option(
        (),
        NAMES,
        "with --private-networks: identities that see and change all networks and devices, as "
        "token:NAME, separated by commas",
    )
    rate_limit: int = option(
        0,
        LIMIT,
        "most requests a second of one client, which is an identity, or an address without one; "
        "0: no limit",
    )
    max_in_flight_per_client: int = option(
        0, LIMIT, "most requests in flight of one client, on all its connections; 0: no limit"
    )
    max_networks_per_client: int = option(
        0, LIMIT, "with --private-networks: most networks of one client; 0: no limit"
    )
    max_model_bytes_per_client: int = option(
        0,
        size(0),
        "with --private-networks: most bytes of models that one client has loaded, and as much "
        "again for what it has uploaded; 0: no limit",
    )
    otlp_endpoint: str = option(
        "",
        TEXT,
        "URL of a collector that gets traces, for example http://localhost:4317; needs the extra "
        "otel; default: that of OTEL_EXPORTER_OTLP_ENDPOINT, or no traces",
    )
    trace_sample_ratio: float = option(
        1.0, RATIO, "part of the calls that are traced, from 0 to 1, if there is a collector"
    )
    trust_trace_parents: bool = option(
        False,
        SWITCH,
        "trace each call that its caller traces, however many; otherwise --trace-sample-ratio "
        "bounds these calls too",
    )
    log_level: str = option(
        "info", choice("debug", "info", "warning", "error"), "lowest level that is logged"
    )
    log_format: str = option("text", choice("text", "json"), "format of the log: text or json")
    slow_request_seconds: float = option(
        0.0,
        SECONDS,
        "log each request that takes this many seconds or longer, with its time in the queue and "
        "in execution; 0: none",
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
        Option(
            name=declared.name,
            kind=declared.metadata["kind"],
            default=declared.default,
            description=declared.metadata["description"],
        )
        for declared in fields(Settings)
        if "kind" in declared.metadata
    )


def settings_table() -> str:
    """The options as a Markdown table, for the documentation."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{each.flag}` | {each.shown_default} | {each.description} |" for each in options()]
    return "\n".join(rows) + "\n"
