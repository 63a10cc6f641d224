"""HAProxy's configuration without the statuses that hide a lost replica."""

from __future__ import annotations

from pathlib import Path

from headrace.cluster.haproxy import rewrite, with_own_statuses

SERVES = """defaults
    mode http
    errorfile 502 /tmp/haproxy-serve/500.http
    errorfile 503 /tmp/haproxy-serve/500.http
    errorfile 504 /tmp/haproxy-serve/500.http
    balance leastconn
frontend grpc_frontend
    errorfile 400 /tmp/other.http
"""


def test_lost_calls_keep_their_own_status() -> None:
    assert with_own_statuses(SERVES) == (
        "defaults\n    mode http\n    balance leastconn\n"
        "frontend grpc_frontend\n    errorfile 400 /tmp/other.http\n"
    )


def test_the_file_among_the_arguments_is_rewritten_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "haproxy.cfg"
    path.write_text(SERVES)
    rewrite(["-db", "-f", str(path), "-x", "/run/admin.sock", "-sf", "7"])
    assert path.read_text() == with_own_statuses(SERVES)
    assert list(tmp_path.iterdir()) == [path]
