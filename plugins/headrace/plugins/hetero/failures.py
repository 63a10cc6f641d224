"""What a subgraph's failure becomes for whoever asked for the whole network."""

from __future__ import annotations

from headrace.runtime.errors import HeadraceError, Internal


def named(error: BaseException, place: str, **facts: str) -> HeadraceError:
    """The error of the same class that also says where it happened.

    Args:
        place: as ``subgraph 2 of 3 on CPU.0``.
        facts: the same for machines.
    """
    if isinstance(error, Internal) or not isinstance(error, HeadraceError):
        text = error.message if isinstance(error, HeadraceError) else repr(error)
        found: HeadraceError = Internal(f"{place}: {text}", metadata={"place": place, **facts})
    else:
        # Not by its constructor: each class has its own.
        found = type(error).__new__(type(error))
        found.__dict__.update(error.__dict__)
        found.message = f"{place}: {error.message}"
        found.args = (found.message,)
        found.metadata = {**error.metadata, "place": place, **facts}
    found.__cause__ = error
    return found
