"""Whether what the clients counted and what the server counted is the same.

Every accepted request has one outcome. A network's outcomes are those that its clients were told;
only requests that a client gave up, or had in flight when it was killed, may have ended otherwise,
and there are at most as many of them as clients have counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from tools.soak.ledger import Counts, End, in_flight

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[tuple[str, Labels], float]

TOLD = {"completed": End.OK, "cancelled": End.CANCELLED, "expired": End.EXPIRED}
OUTCOMES = (*TOLD, "failed")


def outcomes(samples: Samples, scope: str) -> dict[Labels, Counter[str]]:
    """The counters of each network or device by its labels: `accepted`, and each outcome."""
    found: dict[Labels, Counter[str]] = {}
    for (name, labels), value in samples.items():
        key = tuple(each for each in labels if each[0] != "outcome")
        if name == f"headrace_{scope}_accepted_total":
            found.setdefault(key, Counter())["accepted"] += int(value)
        elif name == f"headrace_{scope}_requests_total":
            found.setdefault(key, Counter())[dict(labels)["outcome"]] += int(value)
    return found


def unsettled(samples: Samples) -> list[str]:
    """Where accepted requests and outcomes differ, or something still waits or runs."""
    wrong = [
        f"{name} {dict(labels)} is {value:g}"
        for (name, labels), value in samples.items()
        if name in ("headrace_device_queue_depth", "headrace_device_streams_busy") and value
    ]
    for scope in ("device", "network"):
        for labels, counts in outcomes(samples, scope).items():
            ended = sum(counts[each] for each in OUTCOMES)
            if counts["accepted"] != ended:
                wrong.append(
                    f"{scope} {dict(labels)}: accepted {counts['accepted']}, ended {ended}"
                )
    return wrong


def by_network(samples: Samples) -> dict[str, Counter[str]]:
    """The counters of each network, its versions together."""
    found: dict[str, Counter[str]] = {}
    for labels, counts in outcomes(samples, "network").items():
        found.setdefault(dict(labels)["network"], Counter()).update(counts)
    return found


def differences(
    clients: Counts, samples: Samples, networks: Collection[str], restarted: Collection[str]
) -> list[str]:
    """Where a network's counters are not explained by what its clients counted.

    Args:
        networks: those to compare; each was loaded once, before the first request.
        restarted: those of devices whose process was killed. Their requests fail at that time, and
            clients send some of them again by themselves.
    """
    server, wrong = by_network(samples), []
    for network in networks:
        sent = sum_of(counts for row, counts in clients.items() if row.network == network)
        counted = server.get(network, Counter())
        unknown = sent[End.GIVEN_UP] + in_flight(sent)
        more = {outcome: counted[outcome] - sent[end] for outcome, end in TOLD.items()}
        if network not in restarted:
            unknown += sent[End.ERROR]
            more["failed"] = counted["failed"] - sent[End.FAILED]
        for outcome, excess in more.items():
            if excess < 0:
                wrong.append(f"{network}: {-excess} {outcome} were told that the server lacks")
        if sum(more.values()) > unknown:
            wrong.append(
                f"{network}: the server counted {more} more than clients were told, and only "
                f"{unknown} had an end that nobody was told"
            )
    return wrong


def sum_of(many: Iterable[Counter[End]]) -> Counter[End]:
    found: Counter[End] = Counter()
    for each in many:
        found.update(each)
    return found
