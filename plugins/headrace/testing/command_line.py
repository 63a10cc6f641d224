"""Functions that the command lines of this package share."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def pair(text: str) -> tuple[str, str]:
    """The key and the value of an argument.

    Raises:
        ArgumentTypeError: it is not of the form KEY=VALUE.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Adds those that say which devices are tested, and how they are set up."""
    add = parser.add_argument
    pairs: Any = {"action": "append", "default": [], "type": pair, "metavar": "KEY=VALUE"}
    add("--device", action="append", help="device to test; repeatable; default: all installed")
    add("--config", **pairs, help="configuration key of every load and query")
    add(
        "--device-config",
        **pairs,
        help="configuration key of the device, such as ISOLATION=PROCESS",
    )
    add("--factory", default="", help="package.module:create_plugin of one that is not installed")


def say(text: str) -> None:
    """Prints a line at once, also where the output is a file."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
