"""Configuration keys, each declared once, and the values that they take.

A `Key` says name, type, default, allowed values and meaning. Parsing from the wire's strings,
SUPPORTED_CONFIG_KEYS, help, the docs table and "did you mean" all derive from it. A `ConfigSchema`
is the keys of one device; resolved over layers of strings it gives a typed `Configuration`:

    config = schema.resolve(set_config, load_config)    # later layers win
    streams: int = config[NUM_STREAMS]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from headrace.runtime.config.key import (
    MAX_NAME_LENGTH,
    Key,
    ParameterValue,
    Range,
    T,
    config_field,
    listed,
)
from headrace.runtime.errors import InvalidArgument, NotFound

__all__ = [
    "ConfigSchema",
    "Configuration",
    "Key",
    "ParameterValue",
    "Range",
]

MAX_KEYS = 256


class ConfigSchema:
    """The configuration keys that one device knows. Immutable.

    A key given again replaces the one of the same name, so that a device can take the standard
    keys and change a default: ``ConfigSchema(*STANDARD_KEYS, replace(PERF_COUNT, default=True))``.
    """

    __slots__ = ("_keys",)

    def __init__(self, *keys: Key[Any]) -> None:
        self._keys = {key.name: key for key in keys}

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[Key[Any]]:
        return iter(self._keys.values())

    @property
    def names(self) -> list[str]:
        """SUPPORTED_CONFIG_KEYS."""
        return list(self._keys)

    def key(self, name: str, *, at: str | None = None) -> Key[Any]:
        """The declaration of a key; `at` is the request field that named it.

        Raises:
            NotFound: if the device has no such key; says "did you mean".
        """
        key = self._keys.get(name)
        if key is None:
            # A client's name is bounded before it is compared and echoed.
            shown = name if len(name) <= MAX_NAME_LENGTH else name[:32] + "…"
            raise NotFound.unknown(
                "configuration key", shown, self._keys, field=at or config_field(shown)
            )
        return key

    def resolve(self, *layers: Mapping[str, str], ignore_unknown: bool = False) -> Configuration:
        """The configuration that the layers give over the defaults; later layers win.

        Args:
            layers: name to text, as clients send them.
            ignore_unknown: ignores unknown keys. A query does so, and a load refuses them.

        Raises:
            NotFound: on an unknown key.
            InvalidArgument: on a bad value, or too many keys.
        """
        values = {key.name: key.default for key in self}
        explicit: set[str] = set()
        for layer in layers:
            if len(layer) > MAX_KEYS:
                raise InvalidArgument(
                    f"{len(layer)} configuration keys are more than the {MAX_KEYS} allowed",
                    field="config",
                )
            for name, text in layer.items():
                if ignore_unknown and name not in self:
                    continue
                values[name] = self.key(name).parse(text)
                explicit.add(name)
        return Configuration(MappingProxyType(values), frozenset(explicit), self)

    def refuse_server_keys(self, config: Mapping[str, str], device: str) -> None:
        """Refuses keys that the server's own configuration alone sets for the `device`.

        Raises:
            InvalidArgument: naming the first such key and where it is set.
        """
        self._refuse(
            "server",
            config,
            device,
            "cannot be set by a client; set it in the server's configuration file, "
            f"under [plugins.{device}.config]",
        )

    def refuse_device_keys(self, config: Mapping[str, str], device: str) -> None:
        """Refuses keys of the whole `device` in the configuration of one network, as at load.

        Raises:
            InvalidArgument: naming the first such key and where it is set.
        """
        self.refuse_server_keys(config, device)
        self._refuse(
            "device",
            config,
            device,
            "belongs to the device, not to a network on it: leave it out here and set it with "
            f"SetConfig on {device}",
        )

    def _refuse(self, scope: str, config: Mapping[str, str], device: str, why: str) -> None:
        for name in config:
            key = self._keys.get(name)
            if key is not None and key.scope == scope:
                raise InvalidArgument(
                    f"{name} {why}",
                    field=config_field(name),
                    metadata={"key": name, "device": device},
                )


@dataclass(frozen=True, slots=True)
class Configuration:
    """Values of all keys of a schema. Two with the same values are equal and hash alike.

    Made by `ConfigSchema.resolve`.
    """

    _values: Mapping[str, Any]
    explicit: frozenset[str] = field(compare=False)  # names given by a layer, not defaulted
    schema: ConfigSchema = field(compare=False, repr=False)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __getitem__(self, key: Key[T]) -> T:
        return cast("T", self._values[key.name])

    def __contains__(self, key: Key[Any]) -> bool:
        return key.name in self._values

    def get(self, key: Key[T]) -> T:
        """The key's value, or its default if the device does not know the key."""
        return cast("T", self._values.get(key.name, key.default))

    def get_parameter(self, name: str) -> ParameterValue:
        """The value of the key called `name`, typed and shown as GetConfig gives it.

        Raises:
            NotFound: if there is no such key.
        """
        key = self.schema.key(name, at="name")
        return cast("ParameterValue", key.shown(self._values[key.name]))

    def to_strings(self) -> dict[str, str]:
        """Every key with its value as canonical text; `resolve` reads it back."""
        return {key.name: key.format(self._values[key.name]) for key in self.schema}

    def shown_strings(self) -> dict[str, str]:
        """Like `to_strings`, as clients may see it."""
        return {key.name: key.format(key.shown(self._values[key.name])) for key in self.schema}

    def explicit_strings(self) -> dict[str, str]:
        """Like `to_strings`, but only the keys that were given and not defaulted."""
        return {
            key.name: key.format(self._values[key.name])
            for key in self.schema
            if key.name in self.explicit
        }

    def joined(self, other: Configuration) -> Configuration:
        """The keys of both configurations. They have no key in common."""
        return Configuration(
            MappingProxyType({**self._values, **other._values}),
            self.explicit | other.explicit,
            ConfigSchema(*self.schema, *other.schema),
        )

    def changed(self, changes: Mapping[str, str]) -> Configuration:
        """This configuration after SetConfig on a loaded network.

        Raises:
            NotFound: on an unknown key.
            InvalidArgument: a value is bad, or a key belongs to the server or the device, or takes
                effect only at load.
        """
        self.schema.refuse_server_keys(changes, "NAME")
        for name in changes:
            key = self.schema.key(name)
            if key.scope == "device":
                raise InvalidArgument(
                    f"{name} belongs to the device, not to a network on it: set it with SetConfig "
                    "on the device",
                    field=config_field(name),
                )
            if not key.mutable:
                mutable = listed([key.name for key in self.schema if key.mutable]) or "none"
                raise InvalidArgument(
                    f"{name} cannot change on a loaded network; load the network again with the "
                    f"new value. Keys that can change: {mutable}",
                    field=config_field(name),
                )
        return self.schema.resolve(self.explicit_strings(), changes)
