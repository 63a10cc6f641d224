"""The options for TLS, the token and balancing, which every command of the client has."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.client import errors
from headrace.client.balancing import Balancing
from headrace.client.balancing.addresses import is_several, name_of
from headrace.client.balancing.options import POLICIES
from headrace.client.security import read_token

_VARIABLE: Final = "HEADRACE_TOKEN"

_Policy = StrEnum("_Policy", {each.upper(): each for each in POLICIES})  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class _Option:
    """One option. Its name is also the end of its variable's."""

    name: str
    kind: Any
    default: Any
    help: str

    def parameter(self, *, from_environment: bool) -> inspect.Parameter:
        option = typer.Option(
            "--" + self.name.replace("_", "-"),
            envvar=f"HEADRACE_{self.name.upper()}" if from_environment else None,
            metavar="FILE" if self.kind == Path | None else None,
            help=self.help,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=self.default,
            annotation=Annotated[self.kind, option],
        )


_OPTIONS: Final = (
    _Option(
        "tls_ca",
        Path | None,
        None,
        "Use TLS. PEM file with the authorities that may have signed the server's certificate.",
    ),
    _Option(
        "tls_cert",
        Path | None,
        None,
        "PEM file with the client's own certificate, if the server asks for one.",
    ),
    _Option("tls_key", Path | None, None, "PEM file with the key of --tls-cert."),
    _Option(
        "token_file",
        Path | None,
        None,
        "File with the token that is sent with each call. Or put the token itself into "
        f"{_VARIABLE}.",
    ),
    _Option("allow_insecure", bool, False, "Send the token in plain text to another machine, too."),
    _Option(
        "balance",
        _Policy | None,
        None,
        "How several servers share the calls. A list of servers needs no policy. A name, such as "
        "dns:///NAME:PORT, does.",
    ),
)
FLAGS: Final = frozenset("--" + each.name.replace("_", "-") for each in _OPTIONS)
"""All of them, as they are written."""

_given: dict[str, Any] = {}  # of the one command that this process runs


def connecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these options. `arguments` then returns what they say."""

    @wraps(command)
    def run(**parameters: Any) -> Any:
        _given.clear()
        _given.update({option.name: parameters.pop(option.name) for option in _OPTIONS})
        return command(**parameters)

    return _extended(run, command, from_environment=True)


def before_commands(callback: Callable[..., Any]) -> Callable[..., Any]:
    """The callback of all commands with these options, which it passes over.

    They come without the environment's values, because other commands have options of the same
    names.
    """

    @wraps(callback)
    def run(**parameters: Any) -> Any:
        own = {option.name for option in _OPTIONS}
        return callback(
            **{name: parameter for name, parameter in parameters.items() if name not in own}
        )

    return _extended(run, callback, from_environment=False)


def _extended(
    run: Callable[..., Any], command: Callable[..., Any], *, from_environment: bool
) -> Callable[..., Any]:
    """`run` with the signature of `command` and these options, as Typer reads them."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        *(parameter.replace(kind=keyword) for parameter in signature.parameters.values()),
        *(option.parameter(from_environment=from_environment) for option in _OPTIONS),
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def arguments(server: str) -> dict[str, Any]:
    """The arguments of `Client` for the command's options. The policy is not for one address.

    Raises:
        InvalidArgument: the file with the token cannot be read, or there are two tokens.
    """
    given = dict(_given)
    policy = given.pop("balance", None)
    if policy is not None and (is_several(server, balance=False) or name_of(server) is not None):
        given["balance"] = Balancing(policy=policy.value)
    file = given.pop("token_file", None)
    token = os.environ.get(_VARIABLE) or None
    if file is not None:
        if token is not None:
            raise errors.invalid(
                "token", f"there are two tokens: --token-file and {_VARIABLE}; give one of them"
            )
        token = read_token(file)
    return {**given, "token": token}
