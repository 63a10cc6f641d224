"""HETERO: where are networks cut, and what do the cuts cost?"""

from __future__ import annotations

from typing import Final

from deploy.dashboards.panels import Query, board, graph, listed, number, quantiles, rate, where

_N: Final = where('network=~"$network"')
_BY: Final = "network, version, subgraph, device"
_NAMES: Final = "{{network}} {{version}} subgraph {{subgraph}} on {{device}}"
_COUNT: Final = f"headrace_subgraph_execution_seconds_count{_N}"
_SUM: Final = f"headrace_subgraph_execution_seconds_sum{_N}"
_BYTES: Final = f"headrace_subgraph_cut_bytes_total{_N}"

BOARD: Final = board(
    "hetero",
    "HETERO's cuts",
    "Networks that HETERO split: which subgraph runs where, how long it takes, and how many bytes "
    'cross the cuts. Subgraphs from the 33rd on share the name "more".',
    [
        (
            "Cuts",
            [
                number(
                    "Subgraphs",
                    "Subgraphs of the networks shown, on all servers.",
                    Query(f"count({_COUNT})"),
                ),
                number(
                    "Subgraphs by device",
                    "The fewer cuts, the fewer copies.",
                    Query(f"count by (device) ({_COUNT})", "{{device}}"),
                    width=10,
                ),
                number(
                    "Bytes over the cuts",
                    "That subgraphs read from others, per second.",
                    Query(f"sum({rate(_BYTES)})"),
                    unit="Bps",
                    width=10,
                ),
                listed(
                    "Each subgraph",
                    "Each subgraph's runs, its mean time on a stream, and the bytes that a run "
                    "reads from other subgraphs, since the network was loaded.",
                    [
                        ("runs", "short", f"sum by ({_BY}) ({_COUNT})"),
                        ("mean time", "s", f"sum by ({_BY}) ({_SUM}) / sum by ({_BY}) ({_COUNT})"),
                        (
                            "bytes per run",
                            "bytes",
                            f"sum by ({_BY}) ({_BYTES}) / sum by ({_BY}) ({_COUNT})",
                        ),
                    ],
                    ["network", "version", "subgraph", "device"],
                ),
            ],
        ),
        (
            "Time and bytes",
            [
                graph(
                    "Share of the time",
                    "The subgraph with the largest share is the one to make faster, or to give to "
                    "another device.",
                    [
                        Query(
                            f"sum by ({_BY}) ({rate(_SUM)})"
                            f" / on (network, version) group_left ()"
                            f" sum by (network, version) ({rate(_SUM)})",
                            _NAMES,
                        )
                    ],
                    unit="percentunit",
                    stacked=True,
                ),
                graph(
                    "Execution time",
                    "On a stream of the subgraph's device, without the wait for it.",
                    quantiles("headrace_subgraph_execution_seconds", _BY, _NAMES, _N),
                    unit="s",
                ),
                graph(
                    "Bytes read from other subgraphs",
                    "Between devices that share memory they are handed over by reference.",
                    [Query(f"sum by ({_BY}) ({rate(_BYTES)})", _NAMES)],
                    unit="Bps",
                    stacked=True,
                ),
                graph(
                    "Wait of parts",
                    "How long parts of split requests wait for a stream, on every device.",
                    quantiles(
                        "headrace_device_queue_wait_seconds",
                        "device",
                        "{{device}}",
                        where('kind="part"'),
                    ),
                    unit="s",
                ),
            ],
        ),
    ],
    network_of="headrace_subgraph_execution_seconds_count",
)
