"""ONNX Runtime's session, on a server."""

from __future__ import annotations

import math
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.client.channel.connecting.names import DEFAULT_TARGET
from headrace.client.errors import (
    AlreadyExists,
    Error,
    NotFound,
    cancelled,
    failed_to_load,
    from_details,
    invalid,
)
from headrace.client.exits import close_at_exit
from headrace.client.forks import process
from headrace.client.model import Model, network_name, read_model
from headrace.client.onnxruntime.description import ModelMetadata, NodeArg, metadata_of, node_arg
from headrace.client.onnxruntime.options import RunOptions, SessionOptions
from headrace.client.onnxruntime.refusals import METHODS, refusing
from headrace.client.options import ConfigValue
from headrace.client.outputs import Outputs
from headrace.client.request import InferRequest
from headrace.client.security import read_token
from headrace.client.sync import Client, Network
from headrace.wire.errors import ErrorDetails

Callback: TypeAlias = Callable[[list[Any], Any, str], object]

CPU_PROVIDER: Final = "CPUExecutionProvider"
_PROVIDERS: Final = {"CUDA": "CUDAExecutionProvider", "OPENVINO": "OpenVINOExecutionProvider"}
_NAME = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,127})(:(?P<version>[0-9]+))?")
_LOADING_SECONDS: Final = 0.05
_UNLOAD_SECONDS: Final = 5.0


class InferenceSession:
    """Runs a network on a server, with the methods of ONNX Runtime's InferenceSession. Thread-safe.

    A model is loaded for this session, and unloaded when it is closed or no longer used. With
    `name`, the network belongs to nobody: all sessions of that name share it, the first one loads
    it, and it stays loaded.

    There is no time limit, and a request waits while the device's queue is full, because that is
    how a session of ONNX Runtime behaves. Pass a client with a timeout if you want one.

    Args:
        model: a path, bytes, or the name of a network that the server has, as ``name`` or
            ``name:version``. A path wins if the file exists.
        sess_options, providers, provider_options: are taken and not used: the server decides.
        target: the server's address, or a `Client`. The default is HEADRACE_SERVER, then
            localhost:9000. TLS and the token are those of the variables that the command line
            reads, or the client's.
        device: for a model: the device to load it onto.
        name: for a model: the name of a network to share.
        config: for a model: configuration keys.

    Raises:
        NotFound: there is neither such a file nor such a network.
        Error: as `Client.load_network`.
    """

    def __init__(
        self,
        model: Model,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | None = None,  # noqa: ARG002
        provider_options: Sequence[Mapping[Any, Any]] | None = None,  # noqa: ARG002
        *,
        target: str | Client | None = None,
        device: str = "AUTO",
        name: str | None = None,
        config: Mapping[str, ConfigValue] | None = None,
    ) -> None:
        self._options = sess_options or SessionOptions()
        self._process = process()
        self._client = target if isinstance(target, Client) else _connected(target)
        self._owns_client = self._client is not target
        self._callbacks: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()  # guards `_callbacks`
        try:
            self._open(model, device, name, config)
        except BaseException:
            if self._owns_client:
                self._client.close()
            raise
        self._output_names = self._network.outputs.names
        owned = self._client if self._owns_client else None
        unload = self._network if self._owns_network else None
        self._end = weakref.finalize(self, _end_in_background, self._process, unload, owned)
        self._end.atexit = False
        close_at_exit(self)

    def _open(
        self, model: Any, device: str, name: str | None, config: Mapping[str, ConfigValue] | None
    ) -> None:
        self._owns_network = False
        if not isinstance(model, str | os.PathLike):
            model = read_model(model).read()
        if isinstance(model, str) and not Path(model).exists():
            self._network = _looked_up(self._client, model)
            found = self._network
            self._metadata = ModelMetadata(dict(found.metadata), graph_name=found.name)
            return
        if name is None:
            stem = network_name("session" if isinstance(model, bytes) else "", model)
            name = f"{stem[:100]}-{secrets.token_hex(6)}"
            self._owns_network = True
        try:
            self._network = self._client.load_network(model, device, config=config, name=name)
        except AlreadyExists:
            self._network = _loaded(self._client, name)
        self._metadata = metadata_of(model)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Runs the network once.

        Args:
            output_names: the outputs to return, in this order; None for all.
            input_feed: name → array of the input's type.

        Returns:
            The outputs: arrays that are yours to change, lists for sequences.

        Raises:
            InvalidArgument: an input or a name does not fit the network.
            Cancelled: `run_options` says to terminate.
        """
        _check(run_options)
        names = list(output_names or ())
        outputs = self._network.infer(input_feed, outputs=names, retry_when_full=True)
        return self._listed(names, outputs)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any = None,
        run_options: RunOptions | None = None,
    ) -> None:
        """Starts a run and returns at once.

        Args:
            callback: called with the outputs, `user_data` and an empty text; if the run failed,
                with an empty list, `user_data` and the error's text. Callbacks of one session run
                one after the other, on a thread of theirs.

        Raises:
            InvalidArgument: an input or a name does not fit the network.
        """
        _check(run_options)
        names = list(output_names or ())
        with self._lock:
            if self._callbacks is None:
                self._callbacks = ThreadPoolExecutor(1, "headrace-callbacks")
            callbacks = self._callbacks

        def tell(request: InferRequest) -> None:
            try:
                outputs = self._listed(names, request.result())
            except Error as error:
                callback([], user_data, str(error))
            else:
                callback(outputs, user_data, "")

        def ended(request: InferRequest) -> None:
            try:
                callbacks.submit(tell, request)
            except RuntimeError:  # the session is closed
                tell(request)

        self._network.start_async(input_feed, outputs=names).add_done_callback(ended)

    def _listed(self, names: Sequence[str], outputs: Outputs) -> list[Any]:
        return [_own(outputs[name]) for name in names or self._output_names]

    def get_inputs(self) -> list[NodeArg]:
        return [node_arg(port) for port in self._network.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [node_arg(port) for port in self._network.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself. Of a network that was named, only its name and its
        properties are known."""
        return self._metadata

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        """The providers of ONNX Runtime that do what the network's devices do."""
        devices = (each.partition(".")[0] for each in self._network.info.execution_devices)
        found = [_PROVIDERS[device] for device in devices if device in _PROVIDERS]
        return [*dict.fromkeys(found), CPU_PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {provider: {} for provider in self.get_providers()}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Does nothing: the session has chosen the server's device."""

    def disable_fallback(self) -> None:
        """Does nothing."""

    def enable_fallback(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Unloads the network, if it was loaded for this session alone. Idempotent. In a process
        that was forked, the network stays: it is the parent's."""
        if self._end.detach() is None:
            return
        if self._callbacks is not None:
            self._callbacks.shutdown(wait=False)
        unload = self._network if self._owns_network else None
        _end(self._process, unload, self._client if self._owns_client else None)

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


for _method, _reason in METHODS.items():
    setattr(InferenceSession, _method, refusing(f"InferenceSession.{_method}", _reason))


def _end(made_in: object, network: Network | None, client: Client | None) -> None:
    if made_in is process() and network is not None:
        with suppress(Error):
            network.unload(timeout=_UNLOAD_SECONDS)
    if client is not None:
        client.close()


def _end_in_background(*what: Any) -> None:
    """Ends a session that nobody uses any more. Wherever Python finds that out, nobody can wait; a
    program that ends does, for a thread that is no daemon."""
    with suppress(RuntimeError):  # no thread begins at the interpreter's exit
        threading.Thread(target=_end, args=what).start()


def _connected(target: str | None) -> Client:
    """A client with what the command line would read from the environment."""
    environ = os.environ
    token = environ.get("HEADRACE_TOKEN")
    if file := environ.get("HEADRACE_TOKEN_FILE"):
        if token:
            two = "there are two tokens: HEADRACE_TOKEN and HEADRACE_TOKEN_FILE; set one of them"
            raise invalid("token", two)
        token = read_token(file)
    return Client(
        target or environ.get("HEADRACE_SERVER") or DEFAULT_TARGET,
        timeout=math.inf,
        tls_ca=environ.get("HEADRACE_TLS_CA"),
        tls_cert=environ.get("HEADRACE_TLS_CERT"),
        tls_key=environ.get("HEADRACE_TLS_KEY"),
        token=token or None,
        allow_insecure=environ.get("HEADRACE_ALLOW_INSECURE", "").lower() in ("1", "true", "yes"),
    )


def _looked_up(client: Client, name: str) -> Network:
    """
    Raises:
        NotFound: there is no such network, and no such file.
    """
    found = _NAME.fullmatch(name)
    no_file = f"there is no file {name!r}"
    if found is None:
        raise invalid("model", f"{no_file}, and this is not a network's name")
    try:
        return client.network(found["name"], found["version"] or "")
    except NotFound as error:
        details = ErrorDetails(error.code, f"{no_file}, and the server says: {error}")
        raise from_details(details) from None


def _loaded(client: Client, name: str) -> Network:
    """A network that somebody else loads; waits until it is."""
    while (network := client.network(name)).info.state == "LOADING":
        time.sleep(_LOADING_SECONDS)
    if network.info.state == "FAILED":
        raise failed_to_load(name, network.info.reason)
    return network


def _check(options: RunOptions | None) -> None:
    if options is not None and options.terminate:
        raise cancelled("run_options.terminate is set")


def _own(value: Any) -> Any:
    """An output that may be changed. What came is a view of a message."""
    if isinstance(value, list):
        return [_own(item) for item in value]
    return np.array(value) if isinstance(value, np.ndarray) else value
