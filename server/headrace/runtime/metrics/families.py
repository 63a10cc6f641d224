"""The table of metrics: name, kind, labels and help of all that a server counts.

A plugin adds families of its own with `headrace.runtime.metrics.series`.
"""

from __future__ import annotations

from typing import Final

from headrace.runtime.metrics.series import Family

# Upper bounds, inclusive. Tiny networks take microseconds, generated text takes minutes.
REQUEST_SECONDS: Final = (
    *(5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
)
LOAD_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
LOAD_STAGES: Final = (0.001, 0.0025, 0.005, *LOAD_SECONDS)
BATCH_SIZES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

_DEVICE, _KIND, _NETWORK = ("device",), ("device", "kind"), ("network", "version", "device")

DEVICE_ACCEPTED: Final = Family(
    "device_accepted_total",
    "counter",
    _KIND,
    "Requests, and parts of split requests, that the device's queue accepted.",
)
DEVICE_REQUESTS: Final = Family(
    "device_requests_total",
    "counter",
    (*_KIND, "outcome"),
    "Accepted requests and parts by outcome: completed, failed, cancelled, expired.",
)
DEVICE_REFUSED: Final = Family(
    "device_refused_total", "counter", (*_DEVICE, "reason"), "Requests that were refused."
)
DEVICE_QUEUE_DEPTH: Final = Family(
    "device_queue_depth", "gauge", _DEVICE, "Requests waiting in the device's queue."
)
DEVICE_QUEUE_CAPACITY: Final = Family(
    "device_queue_capacity", "gauge", _DEVICE, "Most requests that the queue holds."
)
DEVICE_QUEUE_WAIT_SECONDS: Final = Family(
    "device_queue_wait_seconds",
    "histogram",
    _KIND,
    "Time in the queue, until a stream starts the request, or it is cancelled or expires.",
    REQUEST_SECONDS,
)
DEVICE_EXECUTION_SECONDS: Final = Family(
    "device_execution_seconds",
    "histogram",
    _KIND,
    "Time on a stream, all stages together.",
    REQUEST_SECONDS,
)
DEVICE_STREAMS: Final = Family("device_streams", "gauge", _DEVICE, "Streams that the device runs.")
DEVICE_STREAMS_BUSY: Final = Family(
    "device_streams_busy", "gauge", _DEVICE, "Streams that are running a request."
)
DEVICE_MEMORY_BYTES: Final = Family(
    "device_memory_bytes",
    "gauge",
    _DEVICE,
    "Memory of the loaded networks, as the driver reports it, or else the size of their weights.",
)
DEVICE_UP: Final = Family(
    "device_up",
    "gauge",
    _DEVICE,
    "1 if the device works, 0 if it is down. A device that is not installed has no series.",
)
DEVICE_OUTAGES: Final = Family(
    "device_outages_total",
    "counter",
    _DEVICE,
    "How often the device went down, for example because its process ended and was started again.",
)
NETWORK_UP: Final = Family(
    "network_up",
    "gauge",
    ("network", "version"),
    "1 if the version serves, 0 if it failed to load. One that is loading or draining has no "
    "series.",
)
NETWORK_ACCEPTED: Final = Family(
    "network_accepted_total", "counter", _NETWORK, "Requests that the network accepted."
)
NETWORK_REQUESTS: Final = Family(
    "network_requests_total",
    "counter",
    (*_NETWORK, "outcome"),
    "Accepted requests by outcome: completed, failed, cancelled, expired.",
)
NETWORK_REQUEST_SECONDS: Final = Family(
    "network_request_seconds",
    "histogram",
    _NETWORK,
    "Time from acceptance to the end.",
    REQUEST_SECONDS,
)
NETWORK_LOAD_SECONDS: Final = Family(
    "network_load_seconds",
    "histogram",
    _NETWORK,
    "Time that loads of the network took.",
    LOAD_SECONDS,
)
LOAD_STAGE_SECONDS: Final = Family(
    "load_stage_seconds",
    "histogram",
    ("stage",),
    "Time that a stage of a load took: copy, read, check, transform, compile, publish.",
    LOAD_STAGES,
)
NETWORK_MEMORY_BYTES: Final = Family(
    "network_memory_bytes",
    "gauge",
    _NETWORK,
    "Memory that the network takes, as its last load has shown. Only of networks that count for a "
    "memory budget.",
)
NETWORK_LOADED: Final = Family(
    "network_loaded",
    "gauge",
    ("network", "version"),
    "1 if the version is in memory, 0 if its next request loads it: it is known, or has made room.",
)
NETWORK_IDLE_SECONDS: Final = Family(
    "network_idle_seconds",
    "gauge",
    ("network", "version"),
    "Time since the last request of the version ended or, without one, since its load.",
)
MEMORY_BUDGET_BYTES: Final = Family(
    "memory_budget_bytes",
    "gauge",
    _DEVICE,
    "Memory that the networks of a device may take. The device `all` stands for all together.",
)
EVICTIONS: Final = Family(
    "evictions_total", "counter", _DEVICE, "Networks that left memory for others."
)
COLD_REQUESTS: Final = Family(
    "cold_requests_total",
    "counter",
    ("network",),
    "Requests that came while the network was not loaded.",
)
SHADOW_REQUESTS: Final = Family(
    "shadow_requests_total",
    "counter",
    ("network", "outcome"),
    "Requests that were chosen for the shadow of the network, by what became of them: equal, close "
    "and differs say how its answer was, failed that it gave none, dropped that it was not asked.",
)
SHADOW_DIFFERENCE: Final = Family(
    "shadow_difference",
    "histogram",
    ("network",),
    "The largest difference of an answer of the shadow, in units of the largest number of its "
    "output; 0 if the answers are equal.",
    (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0),
)
REPOSITORY_UP: Final = Family(
    "repository_up",
    "gauge",
    (),
    "1 if the store of the model repository answered the last look, 0 if not. Only with a "
    "repository in a store, as the next two.",
)
REPOSITORY_COPIED_BYTES: Final = Family(
    "repository_copied_bytes_total", "counter", (), "Bytes that were copied from the store."
)
REPOSITORY_COPIES_BYTES: Final = Family(
    "repository_copies_bytes", "gauge", (), "Size of the networks of the store that are copied."
)
NETWORK_BATCH_SIZE: Final = Family(
    "network_batch_size", "histogram", _NETWORK, "Rows that ran together in a run.", BATCH_SIZES
)
GRPC_REQUESTS: Final = Family(
    "grpc_requests_total", "counter", ("method", "code"), "Finished calls."
)
HTTP_REQUESTS: Final = Family(
    "http_requests_total",
    "counter",
    ("path", "code"),
    "Finished HTTP requests by path with placeholders, and status. 499: the client left.",
)
REFUSED_CALLERS: Final = Family(
    "refused_callers_total",
    "counter",
    ("reason",),
    "Calls and HTTP requests without the right credential or role. Many in a short time mean an "
    "attack, or a client whose credential has expired.",
)
SLOW_REQUESTS: Final = Family(
    "slow_requests_total",
    "counter",
    ("method",),
    "Requests that took --slow-request-seconds or longer. Only with that setting.",
)
LOG_LINES_LEFT_OUT: Final = Family(
    "log_lines_left_out_total",
    "counter",
    (),
    "Failed and slow requests without a line in the log, because there were too many at a time.",
)
CONNECTIONS: Final = Family(
    "connections",
    "gauge",
    ("protocol",),
    "Open connections of clients. Those of gRPC are counted once a second.",
)
MEMORY_USED_BYTES: Final = Family(
    "memory_used_bytes",
    "gauge",
    (),
    "Memory in use in the control group that has the limit, or on the machine, with the processes "
    "of devices and without pages that the system can drop.",
)
MEMORY_LIMIT_BYTES: Final = Family(
    "memory_limit_bytes",
    "gauge",
    (),
    "Smallest memory limit of the server's control groups, or without one the machine's memory.",
)
TLS_EXPIRATION: Final = Family(
    "tls_certificate_expiration_timestamp_seconds",
    "gauge",
    (),
    "When the server's certificate, or one that signed it, expires: seconds since 1970. Only with "
    "--tls-cert.",
)
TLS_STALE: Final = Family(
    "tls_files_stale",
    "gauge",
    (),
    "Whether the files of TLS have changed and are refused (1), so that an earlier state is in "
    "use. Only with --tls-cert.",
)
CACHE_HITS: Final = Family(
    "cache_hits_total", "counter", _DEVICE, "Loads whose network came from the cache."
)
CACHE_MISSES: Final = Family(
    "cache_misses_total",
    "counter",
    _DEVICE,
    "Loads that compiled because the cache had no usable entry.",
)
CACHE_REFUSED: Final = Family(
    "cache_refused_total",
    "counter",
    _DEVICE,
    "Misses with an entry that was damaged, not signed by this server, or unusable.",
)
CACHE_SKIPPED: Final = Family(
    "cache_skipped_total",
    "counter",
    _DEVICE,
    "Loads without the cache, because the device exports nothing that loads faster.",
)
CACHE_WRITE_FAILURES: Final = Family(
    "cache_write_failures_total",
    "counter",
    _DEVICE,
    "Compiled networks that could not be kept.",
)
CACHE_EVICTED: Final = Family(
    "cache_evicted_total", "counter", (), "Cache entries that were removed for newer ones."
)
CACHE_BYTES: Final = Family(
    "cache_bytes", "gauge", (), "Disk space of all cache entries when this server last looked."
)
CACHE_CAPACITY_BYTES: Final = Family(
    "cache_capacity_bytes", "gauge", (), "Disk space that cache entries may take."
)
BUILD_INFO: Final = Family(
    "build_info", "info", ("version", "python"), "Versions of headrace and Python."
)

FAMILIES: Final = tuple(each for each in list(vars().values()) if isinstance(each, Family))
"""All of them, in their order here."""
