"""``python -m headrace.server``: the same as ``headrace serve``."""

import os

import typer

# gRPC's core writes a line for each failed handshake, so that strangers could fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from headrace.server.command import serve

typer.run(serve)
