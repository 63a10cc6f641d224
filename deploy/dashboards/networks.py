"""Networks: how many requests, how many errors, how fast, in which batches?"""

from __future__ import annotations

from typing import Final

from deploy.dashboards.panels import (
    Query,
    S,
    board,
    graph,
    heat,
    listed,
    number,
    quantiles,
    rate,
    up_or_down,
    where,
)

_N: Final = where('network=~"$network"')
_BY: Final = "network, version, device"
_NAMES: Final = "{{network}} {{version}} {{device}}"


def _ended(*outcomes: str) -> str:
    chosen = where('network=~"$network"', f'outcome=~"{"|".join(outcomes)}"') if outcomes else _N
    return rate(f"headrace_network_requests_total{chosen}")


def _ratio(*outcomes: str) -> str:
    return f"sum by ({_BY}) ({_ended(*outcomes)}) / sum by ({_BY}) ({_ended()})"


BOARD: Final = board(
    "networks",
    "networks",
    "The rate, the errors and the latency of each network, its batches and its loads.",
    [
        (
            "State",
            [
                number(
                    "Requests per second",
                    "All that ended, however they ended.",
                    Query(f"sum({_ended()})"),
                    unit="reqps",
                ),
                number(
                    "Failed",
                    "The share of the requests that failed.",
                    Query(f"sum({_ended('failed')}) / sum({_ended()})"),
                    unit="percentunit",
                    limits=[(0.01, "orange"), (0.05, "red")],
                    decimals=2,
                ),
                number(
                    "Expired",
                    "The share of the requests whose deadline passed first.",
                    Query(f"sum({_ended('expired')}) / sum({_ended()})"),
                    unit="percentunit",
                    limits=[(0.01, "orange"), (0.05, "red")],
                    decimals=2,
                ),
                number(
                    "Networks",
                    "Versions of networks that serve.",
                    Query(f"sum(headrace_network_up{_N})"),
                ),
                number(
                    "Not loaded",
                    "Versions that failed to load. `headrace networks` has the reasons.",
                    Query(f"sum(1 - headrace_network_up{_N})"),
                    limits=[(1, "red")],
                ),
                number(
                    "In flight",
                    "Requests that were accepted and have not ended.",
                    Query(
                        f"sum(headrace_network_accepted_total{_N})"
                        f" - sum(headrace_network_requests_total{_N})"
                    ),
                ),
                up_or_down(
                    "Up",
                    "When each version of a network served.",
                    Query(
                        f"min by (network, version, instance) (headrace_network_up{_N})",
                        "{{network}} {{version}} {{instance}}",
                    ),
                ),
            ],
        ),
        (
            "Requests",
            [
                graph(
                    "Rate",
                    "Requests that ended, by network.",
                    [Query(f"sum by ({_BY}) ({_ended()})", _NAMES)],
                    unit="reqps",
                    stacked=True,
                ),
                graph(
                    "Outcomes",
                    "Requests that ended, by outcome.",
                    [Query(f"sum by (outcome) ({_ended()})", "{{outcome}}")],
                    unit="reqps",
                    stacked=True,
                ),
                graph(
                    "Errors",
                    "The share of each network's requests that failed, and that expired.",
                    [
                        Query(_ratio("failed"), f"{_NAMES} failed"),
                        Query(_ratio("expired"), f"{_NAMES} expired"),
                    ],
                    unit="percentunit",
                ),
                graph(
                    "Cancelled",
                    "The share of each network's requests that clients gave up.",
                    [Query(_ratio("cancelled"), _NAMES)],
                    unit="percentunit",
                ),
            ],
        ),
        (
            "Latency",
            [
                graph(
                    "Latency",
                    "From acceptance to the end: the wait and the run. The network to and from the "
                    "client is not in it.",
                    quantiles("headrace_network_request_seconds", _BY, _NAMES, _N),
                    unit="s",
                ),
                heat(
                    "Latency, all networks shown",
                    "How many requests took how many seconds.",
                    "headrace_network_request_seconds",
                    _N,
                ),
            ],
        ),
        (
            "Batches",
            [
                graph(
                    "Rows in a run",
                    "The mean number of rows that ran together. 1 means that nothing is batched.",
                    [
                        Query(
                            f"sum by ({_BY}) ({rate(f'headrace_network_batch_size_sum{_N}')})"
                            f" / sum by ({_BY}) ({rate(f'headrace_network_batch_size_count{_N}')})",
                            _NAMES,
                        )
                    ],
                ),
                heat(
                    "Rows in a run, all networks shown",
                    "How many runs had how many rows.",
                    "headrace_network_batch_size",
                    _N,
                ),
            ],
        ),
        (
            "Loads",
            [
                listed(
                    "Loads",
                    "How often each network was loaded since the server started, and how long that "
                    "took on average.",
                    [
                        (
                            "loads",
                            "short",
                            f"sum by ({_BY}) (headrace_network_load_seconds_count{_N})",
                        ),
                        (
                            "mean load time",
                            "s",
                            f"sum by ({_BY}) (headrace_network_load_seconds_sum{_N})"
                            f" / sum by ({_BY}) (headrace_network_load_seconds_count{_N})",
                        ),
                    ],
                    ["network", "version", "device"],
                    width=16,
                ),
                graph(
                    "Notes of loads",
                    "Automatic changes at loads. The network's metric NOTES has their text.",
                    [
                        Query(
                            f"sum by (network, version) (headrace_network_notes_total{_N})",
                            "{{network}} {{version}}",
                        )
                    ],
                    width=8,
                ),
                graph(
                    "Stages of loads",
                    "How long each stage of a load took on average, all networks together, since "
                    "the server started.",
                    [
                        Query(
                            f"sum by (stage) (headrace_load_stage_seconds_sum{S})"
                            f" / sum by (stage) (headrace_load_stage_seconds_count{S})",
                            "{{stage}}",
                        )
                    ],
                    unit="s",
                    width=24,
                ),
            ],
        ),
        (
            "Shadows",
            [
                graph(
                    "Answers of shadows",
                    "Requests that were chosen for a network's shadow. close: but for rounding. "
                    "dropped: the shadow was not asked.",
                    [
                        Query(
                            f"sum by (network, outcome)"
                            f" ({rate(f'headrace_shadow_requests_total{_N}')})",
                            "{{network}} {{outcome}}",
                        )
                    ],
                    unit="reqps",
                    stacked=True,
                ),
                graph(
                    "Differences of shadows' answers",
                    "The largest difference of an answer, in units of its output's largest number.",
                    quantiles("headrace_shadow_difference", "network", "{{network}}", _N),
                    unit="percentunit",
                ),
            ],
        ),
        (
            "MULTI and AUTO, sequences",
            [
                graph(
                    "Requests given to each device",
                    "By MULTI and AUTO. rerun: it failed on this device and ran again on another.",
                    [
                        Query(
                            f"sum by (network, device, outcome)"
                            f" ({rate(f'headrace_member_requests_total{_N}')})",
                            "{{network}} {{device}} {{outcome}}",
                        )
                    ],
                    unit="reqps",
                    stacked=True,
                ),
                graph(
                    "Open sequences",
                    "Sequences of requests whose states the server keeps.",
                    [Query(f"headrace_network_sequences_open{_N}", "{{network}} {{instance}}")],
                ),
                graph(
                    "Devices out of service",
                    "How often MULTI or AUTO took a device out of service, since the load.",
                    [
                        Query(
                            f"sum by (network, device) (headrace_member_outages_total{_N})",
                            "{{network}} {{device}}",
                        )
                    ],
                ),
                graph(
                    "Ends of sequences",
                    "By a request, by a restart under the same id, by SEQUENCE_IDLE_TIMEOUT, or "
                    "with the network.",
                    [
                        Query(
                            "sum by (network, how)"
                            f" ({rate(f'headrace_network_sequences_ended_total{_N}')})",
                            "{{network}} {{how}}",
                        )
                    ],
                    unit="reqps",
                ),
            ],
        ),
    ],
    network_of="headrace_network_accepted_total",
)
