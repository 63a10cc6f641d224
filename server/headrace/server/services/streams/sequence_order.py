"""The order of a stream's results that belong to one sequence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable


class SequenceOrder:
    """Brings the results of each sequence in the order of its requests. Belongs to the event loop's
    thread.

    The requests of a sequence run in their order. But the end of one may come to the loop over a
    task or another thread, while the next one is computed on the loop and ends at once.
    """

    def __init__(self) -> None:
        self._sequence_of: dict[Hashable, Hashable] = {}  # by request
        self._results: dict[Hashable, OrderedDict[Hashable, Callable[[], object] | None]] = {}

    def __contains__(self, request: Hashable) -> bool:
        """Whether a request that has not been reported belongs to a sequence."""
        return request in self._sequence_of

    def begin(self, request: Hashable, sequence: Hashable) -> None:
        """Takes the next request of a sequence. Idempotent."""
        if request not in self._sequence_of:
            self._sequence_of[request] = sequence
            self._results.setdefault(sequence, OrderedDict())[request] = None

    def end(self, request: Hashable, report: Callable[[], object]) -> None:
        """Calls `report` when the requests before this one have been reported."""
        sequence = self._sequence_of[request]
        self._results[sequence][request] = report
        self._report(sequence)

    def leave(self, request: Hashable) -> None:
        """Lets the requests behind one that has failed be reported before it."""
        sequence = self._sequence_of.pop(request)
        del self._results[sequence][request]
        self._report(sequence)

    def _report(self, sequence: Hashable) -> None:
        """Reports what waits for nothing any more."""
        results, ready = self._results[sequence], list[Callable[[], object]]()
        while results:
            request, report = next(iter(results.items()))
            if report is None:
                break
            del results[request], self._sequence_of[request]
            ready.append(report)
        if not results:
            del self._results[sequence]
        for report in ready:
            report()
