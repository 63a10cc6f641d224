"""What a subgraph's failure becomes for whoever asked for the whole network."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.runtime.errors import FailedPrecondition, HeadraceError, Internal, InvalidArgument


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


def not_the_callers(error: HeadraceError, passed_on: Iterable[str]) -> HeadraceError:
    """The error as it is, or if it is about a tensor that another subgraph has made, one that
    does not blame an input which the caller never gave.

    Args:
        passed_on: the tensors that the subgraph got from others.
    """
    fields = [f"inputs[{name!r}]" for name in passed_on]
    if not isinstance(error, InvalidArgument) or error.field not in fields:
        return error
    found = FailedPrecondition(
        f"{error.message} (another subgraph made this tensor; give its layers another device)",
        metadata=error.metadata,
    )
    found.__cause__ = error
    return found
