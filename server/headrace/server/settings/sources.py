"""Reads settings from the command line, the environment, a TOML file and the defaults.

The earlier source in this order wins. An unknown setting in any source is an error, because a
misspelt limit would not be set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headrace.runtime.config.key import as_text
from headrace.runtime.errors import InvalidArgument, NotFound, did_you_mean
from headrace.runtime.system.atomic_file import read_file
from headrace.server.settings.option import PREFIX, Option
from headrace.server.settings.plugin_settings import PluginSettings
from headrace.server.settings.settings import Settings, options
from headrace.server.toml import parse_toml

_MAX_BYTES = 1 << 20  # of the configuration file
# Variables of the command-line client. It may run in the same environment.
_CLIENT_VARIABLES = frozenset(
    {"HEADRACE_SERVER", "HEADRACE_TLS_CA", "HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE"}
)
_PLUGIN_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_PLUGIN_KEYS: Final[Mapping[str, tuple[type, str, str]]] = {
    "factory": (str, r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", "'module:function'"),
    "device": (str, r"([A-Z][A-Z0-9_]*)?", "the name of an installed device"),
    "library": (
        str,
        r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|/.*)?",
        "a Python package's name or an absolute path",
    ),
    "ep": (str, "", "the name of an execution provider"),
    "config": (dict, "", "a table of keys and values"),
    "enabled": (bool, "", "true or false"),
}
"""What a device's table may have: the type of each value, the form of a text, and both in words."""


def load_settings(
    arguments: Mapping[str, object | None], environment: Mapping[str, str]
) -> Settings:
    """The settings in effect.

    Args:
        arguments: the options on the command line, by name, for example `max_networks`. None means
            that the option is not given.
        environment: the process's environment. Only variables that start with ``HEADRACE_``
            matter. An empty variable counts as not set.

    Raises:
        NotFound: a setting does not exist. The error suggests a similar name.
        InvalidArgument: a value is not of its setting's kind, or the file cannot be read.
    """
    known = {option.setting: option for option in options()}
    given = {name: value for name, value in arguments.items() if value is not None}
    values = _parsed(given, known, "the command line")
    values = _parsed_environment(environment, known) | values
    plugins: tuple[PluginSettings, ...] = ()
    path = values.get("config")
    if isinstance(path, Path):
        table = _read(path)
        plugins = _plugins(table.pop("plugins", {}), str(path))
        in_file = {name: option for name, option in known.items() if name != "config"}
        values = _parsed(table, in_file, str(path)) | values
    settings = Settings(plugins=plugins, **values)  # type: ignore[arg-type]  # parsed by kind
    _check(settings)
    return settings


def _parsed(
    given: Mapping[str, object], known: Mapping[str, Option], source: str
) -> dict[str, object]:
    _refuse_unknown("setting", given, known, source)
    return {name: _value(known[name], value, name, source) for name, value in given.items()}


def _parsed_environment(
    environment: Mapping[str, str], known: Mapping[str, Option]
) -> dict[str, object]:
    by_variable = {option.variable: option for option in known.values()}
    given = {
        name: text
        for name, text in environment.items()
        if name.startswith(PREFIX) and name not in _CLIENT_VARIABLES
    }
    if any(text.startswith("tcp://") for text in given.values()):
        raise InvalidArgument(
            "the environment holds HEADRACE_* variables that Kubernetes made for a Service named "
            "headrace; set enableServiceLinks: false in the pod's specification",
            field="environment",
        )
    _refuse_unknown("variable", given, by_variable, "the environment")
    return {
        by_variable[name].setting: _value(by_variable[name], text, name, "the environment")
        for name, text in given.items()
        if text
    }


def _refuse_unknown(what: str, given: Iterable[str], known: Iterable[str], source: str) -> None:
    names = tuple(known)
    for name in given:
        if name not in names:
            raise NotFound(
                f"unknown {what} {name!r} in {source}{did_you_mean(name, names)}", field=name
            )


def _value(option: Option, value: object, name: str, source: str) -> object:
    try:
        return option.read(value)
    except ValueError:
        raise InvalidArgument(
            f"{name} in {source} cannot be {value!r}; allowed: {option.allowed}", field=name
        ) from None


def _read(path: Path) -> dict[str, object]:
    try:
        return parse_toml(read_file(path, _MAX_BYTES))
    except OSError as error:
        raise InvalidArgument(
            f"cannot read the configuration file {path}: {error.strerror}", field="config"
        ) from error
    except ValueError as error:
        raise InvalidArgument(f"the configuration file {path}: {error}", field="config") from error


def _plugins(tables: object, source: str) -> tuple[PluginSettings, ...]:
    if not isinstance(tables, dict):
        raise InvalidArgument(f"plugins in {source} must be tables [plugins.NAME]", field="plugins")
    return tuple(_plugin(name, table, source) for name, table in tables.items())


def _plugin(name: str, table: object, source: str) -> PluginSettings:
    field = f"plugins.{name}"
    if not _PLUGIN_NAME.fullmatch(name):
        raise InvalidArgument(
            f"{field} in {source}: a device's name has capital letters, digits and _ only",
            field=field,
        )
    if not isinstance(table, dict):
        raise InvalidArgument(f"{field} in {source} must be a table", field=field)
    _refuse_unknown("plugin setting", table, _PLUGIN_KEYS, f"[{field}] of {source}")
    for key, value in table.items():
        kind, form, expected = _PLUGIN_KEYS[key]
        if not isinstance(value, kind) or (form and not re.fullmatch(form, str(value))):
            raise _wrong(field, key, expected, source)
    if table.get("ep") and not table.get("library"):
        raise InvalidArgument(
            f"{field} in {source}: ep names one of a library's providers; give library, too",
            field=f"{field}.ep",
        )
    ways = [way for way in ("factory", "device", "library") if table.get(way)]
    if len(ways) > 1:
        raise InvalidArgument(
            f"{field} in {source}: give {' or '.join(ways)}, not both", field=f"{field}.{ways[-1]}"
        )
    texts = {
        key: _config_text(value, f"{field}.config", key, source)
        for key, value in table.get("config", {}).items()
    }
    return PluginSettings(name, **{**table, "config": texts})


def _config_text(value: object, field: str, key: str, source: str) -> str:
    """A TOML value as a client would write it, because devices are configured with strings."""
    if isinstance(value, str | int | float):
        return as_text(value)
    raise _wrong(field, key, "text, a number or a truth value", source)


def _wrong(field: str, key: str, expected: str, source: str) -> InvalidArgument:
    return InvalidArgument(f"{field}.{key} in {source} is not {expected}", field=f"{field}.{key}")


def _check(settings: Settings) -> None:
    """Refuses settings that are valid one by one but not together."""
    if not settings.host:
        raise InvalidArgument(
            "host is empty: give an address, as 127.0.0.1, or 0.0.0.0 for all interfaces",
            field="host",
        )
    if not settings.private_networks:
        for name in ("operators", "max_networks_per_client", "max_model_bytes_per_client"):
            if getattr(settings, name):
                raise InvalidArgument(
                    f"{name} needs private_networks; without it, all networks belong to all "
                    "clients",
                    field=name,
                )
    if settings.private_networks and settings.tokens is None and settings.jwt_jwks is None:
        raise InvalidArgument(
            "private_networks needs tokens or jwt_jwks, which tell clients apart",
            field="private_networks",
        )
    if settings.unix_socket_only and settings.unix_socket is None:
        raise InvalidArgument(
            "unix_socket_only is given without unix_socket; give both", field="unix_socket"
        )
    same_host = settings.host == settings.http_host and not settings.unix_socket_only
    if same_host and settings.port == settings.http_port != 0:
        raise InvalidArgument(
            f"port and http_port are both {settings.port}; give them different ports",
            field="http_port",
        )
    for given, other in (
        ("ovms_config", "model_repository"),
        ("evict_client_networks", "memory_budget"),
        ("tls_cert", "tls_key"),
        ("tls_key", "tls_cert"),
        ("tls_client_ca", "tls_cert"),
    ):
        if getattr(settings, given) and not getattr(settings, other):
            raise InvalidArgument(f"{given} is given without {other}; give both", field=other)
    _check_store(settings)
    if settings.max_model_bytes > settings.max_uploads_bytes:
        raise InvalidArgument(
            "max_model_bytes is above max_uploads_bytes, so the largest model could not be "
            "uploaded; raise max_uploads_bytes",
            field="max_uploads_bytes",
        )
    if (settings.jwt_jwks is None) is not (not settings.jwt_audience):
        given, missing = ("jwt_jwks", "jwt_audience")[:: 1 if settings.jwt_jwks else -1]
        raise InvalidArgument(f"{given} is set without {missing}; set both", field=missing)


def _check_store(settings: Settings) -> None:
    """Refuses what goes not with a model repository in a store. Errors do not show the address,
    which may have a password."""
    address, config = settings.model_repository, settings.ovms_config
    if isinstance(address, str):
        kind, _, place = address.partition("://")
        try:
            parts = urlsplit(address)
            is_one = ":" not in kind and "://" not in place and parts.port != 0
        except ValueError:
            is_one = False
        if not is_one:  # fsspec's chains, as simplecache::https://host, may hide a password
            raise InvalidArgument(
                "model_repository is not one address; give it as s3://bucket/folder",
                field="model_repository",
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise InvalidArgument(
                "model_repository is an address with a user, a password or a query; leave them "
                "out, and give credentials in the environment",
                field="model_repository",
            )
        if not parts.netloc and not parts.path.strip("/"):
            raise InvalidArgument(
                "model_repository names no bucket or host; give one, as s3://bucket/folder",
                field="model_repository",
            )
        if settings.cache_dir is None:
            raise InvalidArgument(
                "model_repository is in a store, and there is no folder for its copies; give "
                "cache_dir",
                field="cache_dir",
            )
    if isinstance(config, str):
        folder, _, name = config.rpartition("/")
        if folder != address or not name:
            raise InvalidArgument(
                "ovms_config is in a store, but not beside the networks of model_repository; move "
                "it there, or give a file of this machine",
                field="ovms_config",
            )
