"""The server's settings, each declared once with default, kind of value and description."""

# ruff: noqa: RUF009 - option() returns a dataclass field, not a shared value

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from headrace.server.option import (
    GIB,
    HOST,
    MIB,
    NAMES,
    PATH,
    SECONDS,
    SWITCH,
    Option,
    choice,
    integer,
    option,
    size,
)

PORT = integer(0, 65535)
COUNT = integer(1)
SIZE = size(MIB)
MESSAGE = size(2 * MIB)  # exported networks travel in pieces of 1 MiB


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """A `[plugins.NAME]` table of the configuration file.

    Attributes:
        name: the device's name on this server.
        factory: ``module:function`` that makes the plugin, instead of an installed one.
        device: the installed plugin to register under this name; "" means `name` itself.
        config: what the plugin is configured with before any client configures it.
        enabled: whether the device exists at all.
    """

    name: str
    factory: str | None = None
    device: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one server. `settings_sources.load_settings` reads and validates them."""

    host: str = option("127.0.0.1", HOST, "address to serve gRPC on; 0.0.0.0 for all interfaces")
    port: int = option(9000, PORT, "gRPC port; 0 picks a free one")
    metrics_host: str = option("", HOST, "address for metrics and probes; default: as host")
    metrics_port: int = option(
        9001, PORT, "HTTP port of /metrics, /healthz, /readyz; 0: a free one"
    )
    config: Path | None = option(None, PATH, "TOML file with settings and plugin tables")
    model_repository: Path | None = option(None, PATH, "folder of networks that the server offers")
    state_dir: Path | None = option(
        None, PATH, "folder that brings loaded networks back after a restart; default: none kept"
    )
    cache_dir: Path | None = option(
        None, PATH, "folder for compiled networks; a client's CACHE_DIR names a folder inside it"
    )
    max_cache_bytes: int = option(
        10 * GIB, SIZE, "disk space for compiled networks; the least recently used go"
    )
    devices: tuple[str, ...] = option(
        (), NAMES, "the only devices to offer, by comma; default: all"
    )
    isolate_devices: bool = option(
        False,
        SWITCH,
        "put every device that computes into a process of its own; for servers where people whom "
        "you do not trust load networks",
    )
    grace_seconds: float = option(30.0, SECONDS, "time for work in flight to finish after SIGTERM")
    max_message_bytes: int = option(64 * MIB, MESSAGE, "largest gRPC message")
    max_model_bytes: int = option(2 * GIB, SIZE, "largest model that a client may send")
    max_uploads_bytes: int = option(8 * GIB, SIZE, "disk space for uploaded models together")
    max_networks: int = option(256, COUNT, "most networks loaded at a time")
    max_concurrent_rpcs: int = option(
        1024,
        COUNT,
        "most calls at a time, and most streams; a connection gets at most as many as are left",
    )
    max_streams_in_flight: int = option(256, COUNT, "most requests in flight on one InferStream")
    max_stream_bytes: int = option(
        512 * MIB,
        SIZE,
        "what streams have in flight, and results unread, together; a connection gets a ninth",
    )
    mac_key_file: Path | None = option(
        None,
        PATH,
        "key that signs exported and cached networks, made if it is not there; servers may share "
        "it; default: blob.key in the state directory, without one a fresh key at each start",
    )
    scheduling: str = option(
        "batch",
        choice("batch", "normal"),
        "how the system schedules the server's threads: batch, so that they do not interrupt each "
        "other, or normal, where other busy processes share the processors and latency counts",
    )
    log_level: str = option(
        "info", choice("debug", "info", "warning", "error"), "least level that is logged"
    )
    log_format: str = option("text", choice("text", "json"), "form of the log lines: text or json")
    plugins: tuple[PluginSettings, ...] = ()

    def __post_init__(self) -> None:
        if not self.metrics_host:
            object.__setattr__(self, "metrics_host", self.host)


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
    rows = ["| option | environment | default | what |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{each.flag}` | `{each.variable}` | {each.shown_default} | {each.description} |"
        for each in options()
    ]
    return "\n".join(rows) + "\n"
