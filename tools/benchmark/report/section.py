"""What the report consists of: sections that measure, tell what came out, and name their goals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ECHO_COLOR: Final = "#8a8f98"
OUR_COLOR: Final = "#1f6feb"


class Effort(NamedTuple):
    """How much to measure.

    Attributes:
        rounds: of each comparison.
        seconds: of a load.
        processes: of the bare echo and of headrace, where one process costs more than the next.
        whole: whether to measure all sizes, or the first and the last alone.
    """

    rounds: int = 5
    seconds: float = 0.5
    processes: int = 3
    whole: bool = True

    def of(self, sizes: Sequence[int]) -> list[int]:
        return list(sizes) if self.whole else [sizes[0], sizes[-1]]


QUICK: Final = Effort(rounds=1, seconds=0.3, processes=1, whole=False)


class Goal(NamedTuple):
    """A figure that headrace should reach.

    Attributes:
        unit: what stands behind both figures, such as " E".
        at_least: whether more is better.
    """

    work: str
    bound: float
    measured: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Compares what the table shows, so that a reader comes to the same result."""
        shown = float(self._text(self.measured).replace("∞", "inf"))
        return shown >= self.bound if self.at_least else shown <= self.bound

    @property
    def row(self) -> tuple[str, str, str, str]:
        bound = f"{'≥' if self.at_least else '≤'} {self._text(self.bound)}{self.unit}"
        verdict = "met" if self.met else "missed"
        return self.work, bound, f"{self._text(self.measured)}{self.unit}", verdict

    def _text(self, figure: float) -> str:
        """With more digits where the goal is small."""
        if figure == inf:
            return "∞"
        digits = 2 if self.bound < 5 else 1 if self.bound < 100 else 0
        return f"{figure:.{digits}f}"


class Pictures:
    """The folder of the plots.

    Args:
        page: the file that shows them.
    """

    def __init__(self, folder: Path, page: Path) -> None:
        self._folder = folder
        self._page = page

    def draw(
        self,
        name: str,
        says: str,
        paint: Callable[[Axes], None],
        size: tuple[float, float] = (6.4, 3.2),
    ) -> str:
        """Draws a plot. Returns the Markdown that shows it.

        The bytes of the file depend on the figures alone.

        Args:
            says: what the plot shows, for those who do not see it.
        """
        import matplotlib.pyplot as plt

        plt.rcParams["svg.hashsalt"] = "headrace"
        path = self._folder / f"{name}.svg"
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        paint(axes)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        return f"![{says}]({os.path.relpath(path, self._page.parent)})\n"


class Section(Protocol):
    """A module of the report. `found` is what `measure` returned, stored as JSON and read again."""

    @property
    def TITLE(self) -> str: ...

    def measure(self, effort: Effort) -> Any:
        """
        Raises:
            Missing: this machine lacks a program.
        """

    def text(self, found: Any, pictures: Pictures) -> str:
        """The section in Markdown, without its title."""

    def goals(self, found: Any) -> list[Goal]: ...


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. All columns but the first are numbers."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def micros(figure: float) -> str:
    """Microseconds, or milliseconds if they are many."""
    if figure >= 10_000:
        return f"{figure / 1000:,.1f} ms"
    return f"{figure:,.0f} µs" if figure >= 10 else f"{figure:.1f} µs"
