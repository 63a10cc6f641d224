"""Converts what a worker says about its device, networks and layers to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields, replace
from types import MappingProxyType
from typing import Any, Final

from headrace.runtime.config.key import Key, ParameterValue, Range
from headrace.runtime.config.schema import ConfigSchema, Configuration
from headrace.runtime.config.standard_keys import STANDARD_KEYS
from headrace.runtime.errors import UnsupportedLayer
from headrace.runtime.execution.job import LayerProfile
from headrace.runtime.transform.query import QueryResult, Subgraph

_KINDS: Final = {"str": str, "int": int, "float": float, "bool": bool}
_STANDARD: Final = {key.name: key for key in STANDARD_KEYS}


def schema_to_json(schema: ConfigSchema) -> list[dict[str, Any]]:
    return [
        {
            **{each.name: getattr(key, each.name) for each in fields(key)},
            "kind": key.kind.__name__,
            "words": dict(key.words),
            "check": None,
        }
        for key in schema
    ]


def schema_from_json(keys: list[dict[str, Any]]) -> ConfigSchema:
    """The schema. The device's own keys have no `check`, because the worker checks them."""
    return ConfigSchema(*map(_key, keys))


def _key(facts: dict[str, Any]) -> Key[Any]:
    standard = _STANDARD.get(facts["name"])
    check = standard.check if standard is not None and standard.form == facts["form"] else None
    made = {
        "kind": _KINDS[facts["kind"]],
        "choices": tuple(facts["choices"]),
        "words": MappingProxyType(facts["words"]),
        "check": check,
    }
    return Key(**(facts | made))


def of_network(config: Configuration) -> dict[str, str]:
    """The part of a configuration that a load takes."""
    texts = config.to_strings()
    return {key.name: texts[key.name] for key in config.schema if key.scope == "network"}


def parameter_to_json(value: ParameterValue) -> Any:
    return {"range": list(value)} if isinstance(value, Range) else value


def parameter_from_json(facts: Any) -> ParameterValue:
    value: ParameterValue = Range(*facts["range"]) if isinstance(facts, dict) else facts
    return value


def profile_to_json(profile: LayerProfile) -> list[Any]:
    return list(astuple(profile))


def profile_from_json(facts: list[Any]) -> LayerProfile:
    profile = LayerProfile(*facts)
    return replace(profile, origins=tuple(profile.origins))


def query_to_json(result: QueryResult) -> dict[str, Any]:
    return {
        "supported": result.supported_layers,
        "unsupported": [list(layer) for layer in result.unsupported],
        "subgraphs": [[each.device, list(each.layers), each.step] for each in result.subgraphs],
        "housekeeping": result.housekeeping,
        "notes": list(result.notes),
    }


def query_from_json(facts: Mapping[str, Any]) -> QueryResult:
    return QueryResult(
        supported_layers=dict(facts["supported"]),
        unsupported=[UnsupportedLayer(*layer) for layer in facts["unsupported"]],
        subgraphs=[
            Subgraph(device, tuple(layers), step) for device, layers, step in facts["subgraphs"]
        ],
        housekeeping=dict(facts["housekeeping"]),
        notes=tuple(facts["notes"]),
    )
