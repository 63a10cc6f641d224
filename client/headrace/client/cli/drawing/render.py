"""DOT text → pictures, by Graphviz."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import Final

from headrace.client.cli.console import fail

_OR_DOT: Final = "--dot writes the drawing as text, without Graphviz"


def check() -> None:
    """Ends the program, and says what to install, unless pictures can be drawn here."""
    if find_spec("graphviz") is None:
        remedy = "install headrace with its extra 'draw'"
        fail(f"drawing needs the Python package graphviz; {remedy}; {_OR_DOT}")
    if shutil.which("dot") is None:
        remedy = "install Graphviz, as with: apt install graphviz"
        fail(f"drawing needs Graphviz' program dot, which is not on the PATH; {remedy}; {_OR_DOT}")


def render(dot: str, form: str) -> bytes:
    """The picture in a format of Graphviz', such as ``svg`` or ``png``.

    Messages of dot go to the standard error, for example that it scaled a large bitmap down.
    """
    import graphviz  # an extra, and only needed here

    try:
        picture: bytes = graphviz.Source(dot).pipe(format=form)
    except graphviz.CalledProcessError as error:
        fail(f"dot ended with status {error.returncode}, for the reason above; {_OR_DOT}")
    return picture
