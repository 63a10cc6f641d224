"""Reads the ``config.json`` of OpenVINO Model Server: its models, and its pipelines.

A key that has no meaning here is refused by name, and the network is listed with that reason. The
models lie in the model repository.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.runtime.config.key import as_text
from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.runtime.loading.entry import is_network_name
from headrace.runtime.network.network import Network, Port
from headrace.runtime.pipelines.description import PipelineDescription
from headrace.runtime.transform.options import InputOptions, NetworkOptions
from headrace.server.repository.model_config import ModelSettings
from headrace.server.repository.named_files import read_bounded
from headrace.server.repository.ovms_pipelines import ovms_pipeline
from headrace.server.repository.ovms_values import check_keys, list_at, text_at, whole_at, wrong
from headrace.server.repository.policy import parse_policy

_log = logging.getLogger(__name__)

FILE: Final = "config.json"
_MAX_BYTES: Final = 8 << 20
_PLACES: Final = re.compile(r"\b(CPU|GPU|NPU)(\.[0-9]+)?\b")
_LAYOUT: Final = re.compile(r"([A-Z]+)(?::([A-Z]+))?")
_PROPERTIES: Final = {
    "CPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "GPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "CPU_THREADS_NUM": "INFERENCE_NUM_THREADS",
}
"""Older names of OpenVINO's properties."""

_KEYS: Final = frozenset(
    {
        "model_config_list",
        "pipeline_config_list",
        "custom_node_library_config_list",
        "custom_loader_config_list",
        "mediapipe_config_list",
        "monitoring",
    }
)
_OF_MODEL: Final = frozenset(
    {
        "name",
        "base_path",
        "batch_size",
        "shape",
        "layout",
        "nireq",
        "target_device",
        "plugin_config",
        "model_version_policy",
        "allow_cache",
        "stateful",
    }
)


@dataclass(frozen=True, slots=True)
class OvmsModel:
    """
    Attributes:
        path: the folder that has the versions.
        batch, shapes: the sizes that requests have. Under "" is the shape of the only input. -1
            stands for any size.
        text: changes when the configuration does.
    """

    path: Path
    settings: ModelSettings
    batch: int = -1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    text: str = ""

    def check(self, network: Network) -> None:
        """Checks that the network takes requests of these sizes.

        Raises:
            InvalidArgument: it does not.
        """
        ports = {port.name: port for port in network.inputs}
        for name, shape in self.shapes.items():
            if name not in ports and (name or len(ports) != 1):
                raise wrong(f"shape names no input of the model: {name!r}", self.settings.place)
            port = ports[name] if name else network.inputs[0]
            self._check_shape(port, shape)
        for port in network.inputs:
            if self.batch > 0 and port.shape:
                self._check_shape(port, (self.batch, *(-1 for _ in port.shape[1:])))

    def _check_shape(self, port: Port, asked: tuple[int, ...]) -> None:
        shape = port.shape
        if shape is None:
            return
        fits = len(shape) == len(asked) and all(
            size == -1 or not isinstance(own, int) or own == size
            for own, size in zip(shape, asked, strict=True)
        )
        if not fits:
            sizes = [size if isinstance(size, int) else -1 for size in shape]
            message = f"input {port.name!r} of the model has the shape {sizes}, not {list(asked)}"
            raise wrong(f"{message}; export the model with that shape", self.settings.place)


@dataclass(frozen=True, slots=True)
class OvmsPipeline:
    """
    Attributes:
        text: changes when the configuration does.
    """

    description: PipelineDescription
    text: str


@dataclass(frozen=True, slots=True)
class OvmsNetworks:
    """The networks of a file, by name.

    Attributes:
        faults: why the others cannot be loaded.
    """

    models: Mapping[str, OvmsModel] = field(default_factory=dict)
    pipelines: Mapping[str, OvmsPipeline] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> frozenset[str]:
        return frozenset((*self.models, *self.pipelines, *self.faults))


class OvmsFile:
    """The file, read again when it has changed. Thread-safe: `_lock` guards what was read.

    Args:
        root: the model repository.
        address: of the store that the repository is copied from; empty if there is none.
    """

    def __init__(self, path: Path, root: Path, address: str = "") -> None:
        self._path = path
        self._root = root
        self._address = address
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._why = ""  # it could not be read
        self._networks: OvmsNetworks | None = None

    def networks(self) -> OvmsNetworks:
        """The networks that the file describes. If the file is wrong, those of the time before.

        Raises:
            OSError: the file cannot be read.
            InvalidArgument, FailedPrecondition, NotFound: the file was wrong from the start.
        """
        with self._lock:
            try:
                facts = self._path.stat()
                stamp = (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
                if stamp != self._stamp:
                    data = read_bounded(self._path, FILE, _MAX_BYTES)
                    self._networks = read_networks(
                        data, self._path.parent, self._root, self._address
                    )
                    self._stamp, self._why = stamp, ""
            except (OSError, HeadraceError) as error:
                if self._networks is None:
                    raise
                if str(error) != self._why:
                    self._why = str(error)
                    _log.error("%s is not read, and its networks stay: %s", self._path, error)
            assert self._networks is not None
            return self._networks


def read_networks(data: bytes, folder: Path, root: Path, address: str = "") -> OvmsNetworks:
    """The networks that a file describes.

    Args:
        folder: the file's. Relative paths begin there.
        root: the model repository, where all models lie.
        address: of the store that the repository is copied from; a model may lie there.

    Raises:
        InvalidArgument, NotFound: the file is not JSON, or has a key that has no meaning here.
    """
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"is not JSON: {str(error)[:300]}", field=FILE) from None
    check_keys(facts, _KEYS, FILE)
    for key in _KEYS - {"model_config_list", "pipeline_config_list", "monitoring"}:
        if facts.get(key):
            raise wrong(f"{key} has no meaning here; leave it out", FILE)
    monitoring = facts.get("monitoring", {})
    if monitoring and not (
        isinstance(monitoring, dict)
        and monitoring.keys() <= {"metrics"}
        and isinstance(metrics := monitoring.get("metrics", {}), dict)
        and metrics.get("enable") is True
    ):
        raise wrong("monitoring: metrics are always on, under names of headrace", FILE)
    models: dict[str, OvmsModel] = {}
    pipelines: dict[str, OvmsPipeline] = {}
    faults: dict[str, str] = {}
    for kind, each in (
        *(("model", each) for each in list_at(facts, "model_config_list", FILE)),
        *(("pipeline", each) for each in list_at(facts, "pipeline_config_list", FILE)),
    ):
        if kind == "model":
            check_keys(each, frozenset({"config"}), f"{FILE}: model_config_list")
            each = each.get("config")
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or not is_network_name(name):
            raise wrong(f"{str(name)[:200]!r} is not a network name", f"{FILE}: {kind}")
        if name in models or name in pipelines or name in faults:
            raise wrong(f"{name!r} is there twice", f"{FILE}: {kind}")
        where, text = f"{FILE}: {kind} {name!r}", json.dumps(each, sort_keys=True)
        try:
            if kind == "model":
                path = each.get("base_path")
                if address and isinstance(path, str) and path.startswith(f"{address}/"):
                    each["base_path"] = str(root / path.removeprefix(f"{address}/"))
                models[name] = _model(each, folder, root, where, text)
            else:
                pipelines[name] = OvmsPipeline(ovms_pipeline(each, where), text)
        except HeadraceError as error:
            faults[name] = f"{error.field}: {error}"
    return OvmsNetworks(models, pipelines, faults)


def _model(facts: dict[str, Any], folder: Path, root: Path, where: str, text: str) -> OvmsModel:
    check_keys(facts, _OF_MODEL, where)
    if facts.get("stateful"):
        raise wrong("stateful has no meaning here; write [states] in network.toml", where)
    config = dict(_properties(facts.get("plugin_config", {}), where))
    if requests := whole_at(facts, "nireq", 0, where):
        config.setdefault("NUM_STREAMS", str(requests))
    if facts.get("allow_cache") is False:
        config["CACHE_DIR"] = ""
    policy = None
    if "model_version_policy" in facts:
        policy = parse_policy(facts["model_version_policy"], f"{where}: model_version_policy")
    settings = ModelSettings(
        device=_device(facts, where),
        config=config,
        policy=policy,
        options=NetworkOptions(_layouts(facts.get("layout"), where)),
        place=where,
    )
    shapes = _shapes(facts.get("shape", "auto"), where)
    path = _inside(facts.get("base_path"), folder, root, where)
    return OvmsModel(path, settings, _batch(facts.get("batch_size", 0), where), shapes, text)


def _inside(path: Any, folder: Path, root: Path, where: str) -> Path:
    if not isinstance(path, str) or not path:
        raise wrong("base_path is missing", where)
    try:
        found = (folder / path).resolve()
        inside = found.is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError):
        inside = False
    if not inside:
        message = f"base_path {path[:200]!r} lies outside of the model repository"
        raise wrong(f"{message} (--model-repository)", where)
    return found


def _device(facts: Mapping[str, Any], where: str) -> str | None:
    """A device of OpenVINO's, in a list too, is one of OPENVINO."""
    if "target_device" not in facts:
        return None

    def place(found: re.Match[str]) -> str:
        kind, number = found[1], found[2] or ""
        return "OPENVINO" if found[0] == "CPU" else f"OPENVINO.{kind}{number}"

    return _PLACES.sub(place, text_at(facts, "target_device", where))


def _properties(facts: Any, where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(facts, dict):
        raise wrong("plugin_config must be an object", where)
    for key, value in facts.items():
        if not isinstance(value, str | int | float):
            raise wrong(f"plugin_config.{key[:200]} must be text or a number", where)
        yield _PROPERTIES.get(str(key), str(key)), as_text(value)


def _layouts(facts: Any, where: str) -> dict[str, InputOptions]:
    if facts is None:
        return {}
    if not isinstance(facts, dict):
        message = 'layout must name its input, as {"image": "NHWC:NCHW"}'
        raise wrong(message, where)
    options = {}
    for name, text in facts.items():
        found = _LAYOUT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            message = f"layout.{name[:200]} is {str(text)[:100]!r}; write it as NHWC:NCHW"
            raise wrong(f"{message}, with a letter for each axis", where)
        options[name] = InputOptions(layout=found[1], network_layout=found[2] or found[1])
    return options


def _batch(said: Any, where: str) -> int:
    text = str(said)
    if text == "auto" or text in ("0", "-1") or re.fullmatch(r"[0-9]+:[0-9]+", text):
        return -1
    if type(said) in (int, str) and text.isdecimal():
        return int(text)
    raise wrong(f"batch_size is {text[:100]!r}; give a number or 'auto'", where)


def _shapes(said: Any, where: str) -> dict[str, tuple[int, ...]]:
    named = said if isinstance(said, dict) else {"": said}
    shapes = {}
    for name, text in named.items():
        if text == "auto":
            continue
        inner = (
            re.fullmatch(r"[(\[](.*)[)\]]", text.replace(" ", ""))
            if isinstance(text, str)
            else None
        )
        sizes = inner[1].rstrip(",").split(",") if inner else []
        if not sizes or not all(re.fullmatch(r"-1|[0-9]+(:[0-9]+)?", size) for size in sizes):
            raise wrong(f"shape is {str(text)[:100]!r}; write it as (1,3,224,224)", where)
        shapes[name] = tuple(-1 if ":" in size else int(size) for size in sizes)
    return shapes
