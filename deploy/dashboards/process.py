"""The process: what it uses, who calls, who is refused, and when certificates expire."""

from __future__ import annotations

from typing import Final

from deploy.dashboards.panels import Query, S, board, graph, number, rate

_I: Final = "{{instance}}"

BOARD: Final = board(
    "process",
    "process",
    "What the server's process uses, the calls by method and code, refused callers, "
    "connections and certificates.",
    [
        (
            "State",
            [
                number(
                    "Version",
                    "Of headrace, on each server.",
                    Query(f"headrace_build_info{S}", "{{version}}"),
                    named=True,
                ),
                number(
                    "Up since",
                    "How long the youngest process has run.",
                    Query(f"time() - max(process_start_time_seconds{S})"),
                    unit="s",
                ),
                number(
                    "Restarts",
                    "Starts of processes in the time that is shown.",
                    Query(f"sum(changes(process_start_time_seconds{S}[$__range]))"),
                    limits=[(1, "orange"), (3, "red")],
                ),
                number(
                    "Alerts",
                    "Alerts of headrace that fire, on all servers.",
                    Query(
                        'count(ALERTS{alertstate="firing", alertname=~"Headrace.*"}) or vector(0)'
                    ),
                    limits=[(1, "red")],
                ),
                number(
                    "Certificate",
                    "The time until the first certificate expires. Empty without TLS.",
                    Query(
                        f"min(headrace_tls_certificate_expiration_timestamp_seconds{S}) - time()"
                    ),
                    unit="s",
                ),
                number(
                    "TLS files refused",
                    "Servers whose files of TLS have changed and are refused. Empty without TLS.",
                    Query(f"sum(headrace_tls_files_stale{S})"),
                    limits=[(1, "red")],
                ),
            ],
        ),
        (
            "Resources",
            [
                graph(
                    "Processors",
                    "How many processors the server's process keeps busy. Processes of isolated "
                    "devices are not in it.",
                    [Query(rate(f"process_cpu_seconds_total{S}"), _I)],
                ),
                graph(
                    "Memory",
                    "The process's own memory, and the memory in use below the limit of the "
                    "control group or of the machine, which devices' processes share.",
                    [
                        Query(f"process_resident_memory_bytes{S}", f"{_I} process"),
                        Query(f"headrace_memory_used_bytes{S}", f"{_I} in use"),
                        Query(f"headrace_memory_limit_bytes{S}", f"{_I} limit"),
                    ],
                    unit="bytes",
                ),
                graph(
                    "File descriptors",
                    "Open files and connections. At the limit the server accepts no connection.",
                    [
                        Query(f"process_open_fds{S}", f"{_I} open"),
                        Query(f"process_max_fds{S}", f"{_I} limit"),
                    ],
                    logarithmic=True,
                ),
                graph(
                    "Garbage collection",
                    "Collections per second, by generation.",
                    [
                        Query(
                            f"sum by (generation, instance)"
                            f" ({rate(f'python_gc_collections_total{S}')})",
                            f"{_I} generation {{{{generation}}}}",
                        )
                    ],
                ),
            ],
        ),
        (
            "Calls",
            [
                graph(
                    "gRPC calls",
                    "Finished calls by method and code.",
                    [
                        Query(
                            f"sum by (method, code) ({rate(f'headrace_grpc_requests_total{S}')})",
                            "{{method}} {{code}}",
                        )
                    ],
                    unit="reqps",
                    stacked=True,
                ),
                graph(
                    "HTTP requests",
                    "Finished requests by path and status. 499: the client left.",
                    [
                        Query(
                            f"sum by (path, code) ({rate(f'headrace_http_requests_total{S}')})",
                            "{{path}} {{code}}",
                        )
                    ],
                    unit="reqps",
                    stacked=True,
                ),
                graph(
                    "Refused callers",
                    "Calls and requests without the right credential or role, by reason.",
                    [
                        Query(
                            f"sum by (reason) ({rate(f'headrace_refused_callers_total{S}')})",
                            "{{reason}}",
                        )
                    ],
                    unit="reqps",
                ),
                graph(
                    "Connections",
                    "Open connections of clients. gRPC's are counted once a second.",
                    [Query(f"headrace_connections{S}", "{{protocol}} {{instance}}")],
                ),
            ],
        ),
        (
            "Scrapes and the cache's disk space",
            [
                graph(
                    "Duration of a scrape",
                    "How long the server takes to answer Prometheus.",
                    [Query(f"scrape_duration_seconds{S}", _I)],
                    unit="s",
                ),
                graph(
                    "Cache of compiled networks",
                    "Disk space in use, and the most that --max-cache-bytes allows. Empty without "
                    "--cache-dir.",
                    [
                        Query(f"headrace_cache_bytes{S}", f"{_I} in use"),
                        Query(f"headrace_cache_capacity_bytes{S}", f"{_I} limit"),
                    ],
                    unit="bytes",
                    logarithmic=True,
                ),
            ],
        ),
    ],
)
