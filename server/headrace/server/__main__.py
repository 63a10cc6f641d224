"""``python -m headrace.server``: the same as ``headrace serve``."""

import typer

from headrace.server.command import serve

typer.run(serve)
