"""Functions that the command lines of this package share."""

from __future__ import annotations

import argparse
import sys


def pair(text: str) -> tuple[str, str]:
    """The key and the value of an argument.

    Raises:
        ArgumentTypeError: it is not of the form KEY=VALUE.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def say(text: str) -> None:
    """Prints a line at once, also where the output is a file."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
