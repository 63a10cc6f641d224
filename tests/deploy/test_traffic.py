"""Who reaches the servers of deploy/kubernetes, when they count as ready, and how they end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from headrace.server.http.operations import operations_routes
from tests.deploy.rendering import SERVERS, Rendering, rendered
from tests.integration.harness import BASIC, Server
from tests.support.certificates import Authority

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
CLIENT = {"headrace-client": "true"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}


def test_the_probes_speak_what_the_ports_speak(server: Rendering) -> None:
    settings = server.settings
    open_paths = {
        each.path for each in operations_routes(CollectorRegistry(), lambda: None) if each.is_open
    }
    for name in PROBES:
        probe = server.container[name]
        handlers = set(probe) & {"httpGet", "grpc", "exec", "tcpSocket"}
        if settings.tls_client_ca:  # the kubelet has no certificate to show
            assert handlers == {"exec"}
        elif settings.tls_cert:  # and its gRPC probes speak no TLS
            assert handlers == {"httpGet"}
            asked = probe["httpGet"]
            assert (asked["scheme"], server.ports[asked["port"]]) == ("HTTPS", settings.http_port)
            assert asked["path"] in open_paths
        else:
            assert handlers == {"grpc"}
            assert probe["grpc"] == {"port": settings.port}


def test_the_probes_of_mutual_tls_show_the_server_s_own_certificate(tmp_path: Path) -> None:
    authority = Authority()
    authority.write(tmp_path)
    authority.server(also_client=True).write(tmp_path, "tls")
    options = {"cert": "tls.crt", "key": "tls.key", "client-ca": "ca.crt"}
    given = [f"--tls-{name}={tmp_path / file}" for name, file in options.items()]
    container = rendered(SERVERS["mutual-tls"]).container
    with Server(*BASIC, *given) as server:
        for name in PROBES:
            program, option, script = container[name]["exec"]["command"]
            assert (program, option) == ("python3", "-c")
            here = script.replace("/secrets", str(tmp_path)).replace("127.0.0.1:9001", server.http)
            assert here.count(str(tmp_path)) == 3
            subprocess.run([sys.executable, "-c", here], check=True)
            without = here.replace("tls.load_cert_chain", "print")
            refused = subprocess.run([sys.executable, "-c", without], capture_output=True)
            assert refused.returncode != 0


def test_kubernetes_waits_longer_than_the_server_drains(server: Rendering) -> None:
    pause = server.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = server.settings.grace_seconds
    assert float(server.environment["HEADRACE_GRACE_SECONDS"]) == grace
    # The server may take two seconds more to unload.
    assert server.pod["terminationGracePeriodSeconds"] >= pause + grace + 5


def test_a_drain_of_a_node_takes_one_replica_and_can_end(server: Rendering) -> None:
    budget = server.one("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget
    if server.least_replicas > 1:
        # What a client loads lives on one replica, so all serve what a volume holds.
        assert server.all("PersistentVolumeClaim")
        update = server.one("Deployment")["spec"]["strategy"]["rollingUpdate"]
        assert update["maxUnavailable"] == 0


def test_only_clients_with_the_label_reach_grpc(server: Rendering) -> None:
    own = {"kubernetes.io/metadata.name": "headrace"}
    assert server.admits("grpc", CLIENT, own)
    assert not server.admits("grpc", {}, own)
    assert not server.admits("grpc", PROMETHEUS, own)
    assert not server.admits("grpc", CLIENT, {"kubernetes.io/metadata.name": "other"})


def test_only_prometheus_reaches_http_and_only_where_it_scrapes(server: Rendering) -> None:
    monitored = bool(server.all("PodMonitor"))
    for name in ("headrace", "monitoring"):
        space = {"kubernetes.io/metadata.name": name}
        assert server.admits("http", PROMETHEUS, space) == monitored
        assert not server.admits("http", CLIENT, space)
        assert not server.admits("http", {}, space)


def test_the_server_opens_no_connections_but_for_a_mesh(server: Rendering) -> None:
    policies = [each["spec"] for each in server.all("NetworkPolicy")]
    assert any("Egress" in each["policyTypes"] for each in policies)
    opened = [rule for each in policies for rule in each.get("egress", [])]
    assert bool(opened) == (server.settings.tls_cert is None)
