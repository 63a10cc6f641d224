"""Runs variants on a device until the time is over, and collects the failures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from headrace.runtime.errors import HeadraceError
from tools.fuzz.devices.answer import Answer, How
from tools.fuzz.devices.judge import FAILURES, Finding, Verdict, judge
from tools.fuzz.devices.lane import Lane
from tools.fuzz.devices.shrink import shrunk
from tools.fuzz.devices.values import rounded
from tools.fuzz.devices.variant import Variant, widened

_MOST_ENDINGS = 3
_MOST_KEPT = 5
_ROUNDINGS = 8


@dataclass(slots=True)
class Failure:
    """Failures of one sort.

    Attributes:
        smallest: reproduces the first of them.
        confirmed: the first one failed again in a new process. If it did not, an earlier variant
            in the same process may be the cause.
        names: of the variants that failed so, as many as are kept.
    """

    verdict: Verdict
    operator: str
    kind: str
    text: str
    smallest: Variant
    confirmed: bool
    names: list[str] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class Campaign:
    """The results of a device's variants so far.

    Attributes:
        counts: verdicts on networks that were not loaded, and on requests.
        noted: some of the answers that the reference and the second device do not agree on, by
            verdict and operator; `noted_counts` says how many there are.
        skipped: variants of operators that have ended the process too often.
    """

    device: str
    networks: int = 0
    requests: int = 0
    skipped: int = 0
    seconds: float = 0.0
    counts: Counter[Verdict] = field(default_factory=Counter)
    undefined: Counter[str] = field(default_factory=Counter)
    failures: dict[tuple[Verdict, str, str], Failure] = field(default_factory=dict)
    noted: dict[tuple[Verdict, str], list[str]] = field(default_factory=dict)
    noted_counts: Counter[tuple[Verdict, str]] = field(default_factory=Counter)
    restarts: int = 0
    version: str = ""


class Fuzzer:
    """Runs variants on a device, and on the reference where that decides what an answer is worth.

    Args:
        device, reference: their processes.
        second: another device, which runs the network if the device and the reference differ; None
            if there is none.
        report: called with each failure of a new sort.
        shrink_seconds: how long one failure may be shrunk.
    """

    def __init__(
        self,
        device: Lane,
        reference: Lane,
        second: Lane | None,
        report: Callable[[Failure], None] = lambda _: None,
        shrink_seconds: float = 20.0,
    ) -> None:
        self._device = device
        self._reference = reference
        self._second = second
        self._report = report
        self._shrink_seconds = shrink_seconds
        self._endings: Counter[str] = Counter()
        self.campaign = Campaign(device.name)

    def run(self, variants: Iterable[Variant], deadline: float) -> Campaign:
        """Runs variants until there are no more, or until the monotonic clock shows `deadline`.

        Raises:
            Unavailable: the device does not start.
        """
        campaign, start = self.campaign, time.monotonic()
        try:
            self._device.start()
            self._reference.start()
            for variant in variants:
                if time.monotonic() >= deadline:
                    break
                if self._endings[variant.operator] >= _MOST_ENDINGS:
                    campaign.skipped += 1
                    continue
                self._take(variant, self._device.ask(variant), deadline)
        finally:
            campaign.seconds += time.monotonic() - start
            campaign.restarts = self._device.restarts
            campaign.version = self._device.version
        return campaign

    def _take(self, variant: Variant, answer: Answer, deadline: float) -> None:
        campaign = self.campaign
        campaign.networks += 1
        if answer.how is How.ANSWERED:
            campaign.requests += len(answer.replies)
        for finding in self._judged(variant, answer):
            campaign.counts[finding.verdict] += 1
            if finding.verdict is Verdict.UNDEFINED:
                campaign.undefined[finding.kind] += 1
            elif finding.verdict in FAILURES:
                self._fail(variant, finding, deadline)
            elif finding.verdict in (Verdict.DISPUTED, Verdict.DOUBTED):
                key = (finding.verdict, variant.operator)
                campaign.noted_counts[key] += 1
                if campaign.noted_counts[key] <= _MOST_KEPT:
                    note = f"{variant.name} {finding.feed} {variant.origin}: {finding.text}"
                    campaign.noted.setdefault(key, []).append(note)

    def _ask_second(self, variant: Variant) -> Answer | None:
        if self._second is None:
            return None
        try:
            return self._second.ask(variant)
        except HeadraceError:  # its backend is not installed
            self._second = None
            return None

    def _fail(self, variant: Variant, finding: Finding, deadline: float) -> None:
        if finding.verdict in (Verdict.ENDED, Verdict.HUNG):
            self._endings[variant.operator] += 1
        key = (finding.verdict, variant.operator, finding.kind)
        if key not in self.campaign.failures:
            smallest, confirmed = self._shrunk(variant, finding, deadline)
            if finding.verdict is Verdict.HUNG and not confirmed:  # the machine was busy
                self.campaign.counts[Verdict.HUNG] -= 1
                self.campaign.counts[Verdict.SLOW] += 1
                return
            self.campaign.failures[key] = Failure(*key, finding.text, smallest, confirmed)
        failure = self.campaign.failures[key]
        failure.count += 1
        if len(failure.names) < _MOST_KEPT and variant.name not in failure.names:
            failure.names.append(variant.name)
        if failure.count == 1:
            self._report(failure)

    def _shrunk(self, variant: Variant, finding: Finding, deadline: float) -> tuple[Variant, bool]:
        """The smallest variant that fails so, and whether the failure is seen again at all."""
        if finding.feed is not None:
            alone = replace(variant, feeds=(variant.feeds[finding.feed],))
        else:
            alone = variant
        end = min(time.monotonic() + self._shrink_seconds, deadline)

        def fails(simpler: Variant) -> bool:
            return any(each.verdict is finding.verdict for each in self.verdicts(simpler))

        if finding.verdict in (Verdict.ENDED, Verdict.HUNG):
            self._device.stop()  # so that nothing which happened before has a part in it
        tries = (each for each in (alone, variant) if time.monotonic() < end)
        start = next((each for each in tries if fails(each)), None)
        if start is None:
            return variant, False
        return shrunk(start, fails, lambda: time.monotonic() < end), True

    def verdicts(self, variant: Variant) -> list[Finding]:
        """The verdicts on a variant, without counting it."""
        return self._judged(variant, self._device.ask(variant, patience=2.0))

    def _judged(self, variant: Variant, answer: Answer) -> list[Finding]:
        """The verdicts; the reference and the second device run once at most, and not at all for a
        network that the device refuses, as it does most slow ones."""
        return judge(
            variant,
            answer,
            cache(lambda: self._reference.ask(variant)),
            cache(lambda: self._ask_second(variant)),
            cache(lambda: self._reference.ask(_rounded(variant))),
            cache(lambda: self._ask_widened(variant)),
        )

    def _ask_widened(self, variant: Variant) -> Answer | None:
        wider = widened(variant)
        return None if wider is variant else self._reference.ask(wider)


def _rounded(variant: Variant) -> Variant:
    """The variant with its requests again and again, and their numbers moved by some steps."""
    rng = np.random.default_rng(0)
    feeds = tuple(
        {
            name: rounded(value, rng) if isinstance(value, np.ndarray) else value
            for name, value in feed.items()
        }
        for _ in range(_ROUNDINGS)
        for feed in variant.feeds
    )
    return replace(variant, feeds=feeds)
