"""Run in an environment that holds the wheel without extras: the client alone."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from importlib import metadata

# What the client may bring along, by the names of the distributions, and pip that put it there.
ALLOWED = {
    "headrace",
    "grpcio",
    "grpcio-status",
    "googleapis-common-protos",
    "protobuf",
    "numpy",
    "ml-dtypes",
    "hpack",
    "typing-extensions",
    "pip",
    "setuptools",
}
# Needs the extra `cli`.
EXTRAS = ("headrace.client.cli",)


def main() -> None:
    names = {re.sub(r"[-_.]+", "-", each.name).lower() for each in metadata.distributions()}
    if not names <= ALLOWED:
        sys.exit(f"the client brings more than its own dependencies: {sorted(names - ALLOWED)}")
    for root in ("headrace.v1", "headrace.wire", "headrace.client"):
        package = importlib.import_module(root)
        for module in pkgutil.walk_packages(package.__path__, f"{root}."):
            if not module.name.startswith(EXTRAS):
                importlib.import_module(module.name)
    from headrace.client import Client
    from headrace.client.aio import Client as AsyncClient

    print(f"the client imports with {len(names)} distributions: {Client}, {AsyncClient}")


main()
