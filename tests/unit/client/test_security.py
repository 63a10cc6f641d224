"""The token goes with every call and to no other machine in plain text; files are checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.client import Client, ErrorDetails, errors
from headrace.client.security import Endpoint
from tests.support.certificates import Authority
from tests.support.client_fake import KINDS, Fake, connected, running

AUTHORITY = Authority()
X = np.array([[1, 2], [3, 4]], np.float32)


class Seen(grpc.ServerInterceptor):  # type: ignore[misc]
    """Notes what each call sent as its credential."""

    def __init__(self) -> None:
        self.credentials: dict[str, set[Any]] = {}

    def intercept_service(self, continuation: Any, call: Any) -> Any:
        sent = dict(call.invocation_metadata).get("authorization")
        self.credentials.setdefault(call.method.rpartition("/")[2], set()).add(sent)
        return continuation(call)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def fake(seen: Seen) -> Iterator[Fake]:
    with running(interceptors=[seen]) as server:
        yield server


def use(client: Any) -> None:
    """Makes calls of all four kinds, and requests of every kind."""
    client.devices()
    network = client.load_network(bytes(1 << 20), name="echo")
    network.infer({"x": X})
    network.start_async({"x": X}).result()
    network.export()
    network.unload()


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_sends_the_token(kind: str, fake: Fake, seen: Seen) -> None:
    with connected(kind, fake.target, token="secret") as client:
        use(client)
    assert {"UploadModel", "ExportNetwork", "Infer", "ListDevices"} <= seen.credentials.keys()
    assert set.union(*seen.credentials.values()) == {"Bearer secret"}


def test_streams_send_the_token(fake: Fake, seen: Seen) -> None:
    with Client(fake.target, token="secret") as client:
        assert len(list(client.network("echo").infer_many([{"x": X}] * 3))) == 3
        client.network("stateful").session().infer({"x": X})
    assert seen.credentials["InferStream"] == {"Bearer secret"}
    assert set.union(*seen.credentials.values()) == {"Bearer secret"}


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_token_no_call_sends_one(kind: str, fake: Fake, seen: Seen) -> None:
    with connected(kind, fake.target) as client:
        use(client)
    assert set.union(*seen.credentials.values()) == {None}


def test_a_function_gives_each_call_its_token(fake: Fake, seen: Seen) -> None:
    tokens = iter(["first", "second"])
    with Client(fake.target, token=lambda: next(tokens)) as client:
        client.devices()
        client.devices()
    assert seen.credentials["ListDevices"] == {"Bearer first", "Bearer second"}


@pytest.mark.parametrize("target", ["example.com", "10.0.0.1:9000", "localhost,example.com:1"])
def test_a_token_does_not_travel_to_another_machine_in_plain_text(target: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="plain text; pass tls_ca") as refused:
        Endpoint(f"dns:{target}" if "," in target else target, token="secret")
    assert refused.value.details.field == "token"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("target", ["localhost", "127.0.0.1:1", "[::1]:9000", "unix:/run/headrace"])
def test_a_token_may_go_to_this_machine_in_plain_text(target: str) -> None:
    assert Endpoint(target, token="secret").security.metadata()


def test_somebody_who_knows_better_may_send_it_anyway() -> None:
    assert Endpoint("example.com", token="secret", allow_insecure=True).security.metadata()


@pytest.mark.parametrize("token", ["", "two words", "line\n", "umläut", "x" * 8001])
def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(errors.InvalidArgument) as refused:
        Endpoint("localhost", token=token)
    assert not token or token not in str(refused.value)


def test_a_token_is_not_shown_by_accident() -> None:
    assert "secret" not in repr(Endpoint("localhost", token="secret").security)


@pytest.mark.parametrize(
    ("files", "field", "said"),
    [
        ({"tls_ca": "missing.crt"}, "tls_ca", "cannot read .*missing.crt"),
        ({"tls_ca": "a.key"}, "tls_ca", "holds no certificate"),
        ({"tls_cert": "a.crt"}, "tls_key", "belong together"),
        ({"tls_key": "a.key"}, "tls_cert", "belong together"),
        ({"tls_cert": "a.crt", "tls_key": "b.key"}, "tls_cert", "are not a certificate and its"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, files: dict[str, str], field: str, said: str
) -> None:
    for name in ("a", "b"):
        AUTHORITY.client(name).write(tmp_path, name)
    paths: dict[str, Any] = {name: tmp_path / file for name, file in files.items()}
    with pytest.raises(errors.InvalidArgument, match=said) as refused:
        Endpoint("localhost", **paths)
    assert refused.value.details.field == field


def test_credentials_of_grpc_and_files_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="not both"):
        Endpoint("localhost", grpc.ssl_channel_credentials(), tls_ca=AUTHORITY.write(tmp_path))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
    ],
)
def test_the_servers_refusals_have_classes_of_their_own(
    fake: Fake, code: grpc.StatusCode, kind: type[errors.Error]
) -> None:
    fake.failures.append(ErrorDetails(code, "no", reason="X"))
    with Client(fake.target) as client, pytest.raises(kind, match="no"):
        client.devices()
