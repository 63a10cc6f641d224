"""Devices: are they up, do requests wait, and what are the streams doing?"""

from __future__ import annotations

from typing import Final

from deploy.dashboards.panels import (
    Query,
    S,
    board,
    graph,
    heat,
    number,
    quantiles,
    rate,
    up_or_down,
)

_BY: Final = "device, instance"
_NAMES: Final = "{{device}} {{instance}}"
_WAITS: Final = quantiles("headrace_device_queue_wait_seconds", _BY, _NAMES)
_USE: Final = (
    f"sum by ({_BY}) ({rate(f'headrace_device_execution_seconds_sum{S}')})"
    f" / sum by ({_BY}) (headrace_device_streams{S})"
)

BOARD: Final = board(
    "devices",
    "devices",
    "Whether devices are up, how long requests wait for them, and how busy their streams are.",
    [
        (
            "State",
            [
                number(
                    "Devices down",
                    "Devices that do not work now.",
                    Query(f"count(headrace_device_up{S} == 0) or count(headrace_device_up{S}) * 0"),
                    limits=[(1, "red")],
                ),
                number(
                    "Requests that wait",
                    "In all queues together.",
                    Query(f"sum(headrace_device_queue_depth{S})"),
                ),
                number(
                    "Fullest queue",
                    "Requests beyond a queue's capacity are refused with RESOURCE_EXHAUSTED.",
                    Query(
                        f"max(headrace_device_queue_depth{S} / headrace_device_queue_capacity{S})"
                    ),
                    unit="percentunit",
                    limits=[(0.5, "orange"), (0.8, "red")],
                    decimals=1,
                ),
                number(
                    "Longest wait",
                    "The 99th percentile of the device where it is highest.",
                    Query(f"max({_WAITS[-1].expression} >= 0)"),
                    unit="s",
                    limits=[(0.1, "orange"), (1, "red")],
                ),
                number(
                    "Busiest streams",
                    "The share of the streams' time that runs took, on the busiest device.",
                    Query(f"max({_USE})"),
                    unit="percentunit",
                    decimals=1,
                ),
                number(
                    "Outages",
                    "How often devices went down in the time that is shown.",
                    Query(f"sum(increase(headrace_device_outages_total{S}[$__range]))"),
                    limits=[(1, "orange")],
                    decimals=0,
                ),
                up_or_down(
                    "Up",
                    "When each device worked. A device that is not installed has no line.",
                    Query(f"min by ({_BY}) (headrace_device_up{S})", _NAMES),
                ),
            ],
        ),
        (
            "Queues",
            [
                graph(
                    "Queue depth",
                    "Requests that wait.",
                    [Query(f"headrace_device_queue_depth{S}", _NAMES)],
                    width=8,
                ),
                graph(
                    "Share of the queue's capacity",
                    "At 100 % the device refuses requests with RESOURCE_EXHAUSTED. A queue that "
                    "stays full needs more replicas, streams or devices, or slower clients. Parts "
                    "of split requests are not refused, and may make it more than full.",
                    [
                        Query(
                            f"headrace_device_queue_depth{S} / headrace_device_queue_capacity{S}",
                            _NAMES,
                        )
                    ],
                    unit="percentunit",
                    width=8,
                ),
                graph(
                    "Refused",
                    "Requests that were refused, by reason. No line means that none was.",
                    [
                        Query(
                            f"sum by (reason, {_BY}) ({rate(f'headrace_device_refused_total{S}')})",
                            f"{_NAMES} {{{{reason}}}}",
                        )
                    ],
                    unit="reqps",
                    width=8,
                ),
                graph(
                    "Time in the queue",
                    "How long requests wait until a stream starts them. This is what grows first "
                    "when there is too much work.",
                    _WAITS,
                    unit="s",
                ),
                heat(
                    "Time in the queue, all devices",
                    "How many requests waited for how many seconds.",
                    "headrace_device_queue_wait_seconds",
                ),
            ],
        ),
        (
            "Streams",
            [
                graph(
                    "Streams and busy streams",
                    "How many requests run at the same time, and how many may.",
                    [
                        Query(f"headrace_device_streams_busy{S}", f"{_NAMES} busy"),
                        Query(f"headrace_device_streams{S}", f"{_NAMES} streams"),
                    ],
                ),
                graph(
                    "Use of the streams",
                    "The share of the streams' time that runs took. At 100 % more requests only "
                    "wait longer.",
                    [
                        Query(_USE, _NAMES),
                    ],
                    unit="percentunit",
                ),
                graph(
                    "Execution time",
                    "How long a run takes on a stream, all stages together.",
                    quantiles("headrace_device_execution_seconds", _BY, _NAMES),
                    unit="s",
                ),
                graph(
                    "Requests by outcome",
                    "What devices finish. A part is a piece of a request that HETERO, MULTI, AUTO "
                    "or BATCH gave to a device.",
                    [
                        Query(
                            f"sum by (kind, outcome, {_BY})"
                            f" ({rate(f'headrace_device_requests_total{S}')}) > 0",
                            f"{_NAMES} {{{{kind}}}} {{{{outcome}}}}",
                        )
                    ],
                    unit="reqps",
                    stacked=True,
                ),
            ],
        ),
        (
            "Memory and the cache",
            [
                graph(
                    "Memory of the loaded networks",
                    "As the driver reports it, or else the size of the networks' weights.",
                    [Query(f"headrace_device_memory_bytes{S}", _NAMES)],
                    unit="bytes",
                    stacked=True,
                ),
                graph(
                    "Loads with the cache",
                    "Loads that found their compiled network in the cache, and loads that had to "
                    "compile it, since the server started.",
                    [
                        Query(f"sum by (device) (headrace_cache_hits_total{S})", "{{device}} hit"),
                        Query(
                            f"sum by (device) (headrace_cache_misses_total{S})", "{{device}} miss"
                        ),
                    ],
                ),
            ],
        ),
    ],
)
