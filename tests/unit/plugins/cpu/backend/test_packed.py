"""Sessions that map weights which were written once."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.plugins.cpu.backend import custom_ops, packed, session
from headrace.plugins.cpu.backend.session import (
    OnnxRuntimeSession,
    Provider,
    SessionSettings,
    Source,
)
from headrace.plugins.cpu.backend.shared import SharedSessions
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.errors import Cancelled, HeadraceError, Internal, InvalidModel
from headrace.runtime.execution.cancel import CancelToken
from headrace.testing.case import network_of

MATMUL = "m (float[N,512] x) => (float[N,512] y) { [product] y = MatMul(x, w) }"
WEIGHT = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
X = {"x": np.random.default_rng(1).standard_normal((3, 512)).astype(np.float32)}


def source(text: str = MATMUL, weight: np.ndarray[Any, Any] = WEIGHT) -> Source:
    return session.source_of(network_of(text, {"w": weight}).model)


def opened(
    files: WeightFiles | None,
    of: Source | None = None,
    provider: Provider | None = None,
    token: CancelToken | None = None,
) -> OnnxRuntimeSession:
    """A session that no other one is shared with."""
    return packed.open_source(
        of or source(),
        provider or Provider(),
        SessionSettings(),
        token or CancelToken(),
        SharedSessions(files) if files is not None else None,
    )


def answer(of: OnnxRuntimeSession) -> Any:
    (output,) = of.run(["y"], X, session.run_options())
    return output


@pytest.fixture
def files(tmp_path: Path) -> WeightFiles:
    return WeightFiles(tmp_path, b"k" * 32, 2**30)


def written(root: Path) -> list[Path]:
    return list(root.glob("weights/*"))


def test_pages_are_settled_when_a_session_is_open_and_when_nothing_maps_them_any_more(
    files: WeightFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[bool] = []

    def settle(path: Path) -> None:
        mapped.append(str(path) in Path("/proc/self/maps").read_text())

    monkeypatch.setattr(session, "settle_pages", settle)
    of = opened(files)
    assert mapped == [True]
    del of
    assert mapped == [True, False]


def test_answers_are_the_same_bits_with_and_without_mapped_weights(
    files: WeightFiles, tmp_path: Path
) -> None:
    plain, first, second = opened(None), opened(files), opened(files)
    np.testing.assert_array_equal(answer(first), answer(plain))
    np.testing.assert_array_equal(answer(second), answer(plain))
    assert len(written(tmp_path)) == 1


def test_the_second_session_packs_nothing(
    files: WeightFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(files)

    def never(*_: object) -> None:
        raise AssertionError("opened from the network's own weights")

    monkeypatch.setattr(session, "_open_source", never)
    answer(opened(files))


def test_a_session_keeps_working_when_its_file_leaves(files: WeightFiles, tmp_path: Path) -> None:
    plain, mapped = opened(None), opened(files)
    (file,) = written(tmp_path)
    file.unlink()
    np.testing.assert_array_equal(answer(mapped), answer(plain))


def test_a_damaged_file_is_made_anew(files: WeightFiles, tmp_path: Path) -> None:
    plain = opened(None)
    opened(files)
    (file,) = written(tmp_path)
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[:5000] + b"damage" + whole[5006:])
    np.testing.assert_array_equal(answer(opened(files)), answer(plain))
    assert file.read_bytes() == whole


def test_a_network_without_weights_has_a_file_with_its_graph(
    files: WeightFiles, tmp_path: Path
) -> None:
    plain = source("m (float[N,512] x) => (float[N,512] y) { y = Neg(x) }")
    first, second = opened(files, plain), opened(files, plain)
    np.testing.assert_array_equal(answer(second), answer(first))
    assert len(written(tmp_path)) == 1


def test_a_network_that_the_backend_refuses_is_no_matter_for_the_log(
    files: WeightFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strange = source("m (float[N,512] x) => (float[N,512] y) { y = headrace.test.Strange(x) }")
    with pytest.raises(HeadraceError):
        opened(files, strange)
    assert caplog.messages == []
    assert written(tmp_path) == []


def test_a_session_with_a_custom_library_has_no_file(
    files: WeightFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_ops, "register", lambda *_: None)
    opened(files, provider=Provider(libraries=("/a/library.so",)))
    assert written(tmp_path) == []


@pytest.mark.parametrize("error", [Internal("it cannot"), OSError("the disk is full")])
def test_a_session_opens_also_if_nothing_can_be_written(
    files: WeightFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(session, "write_packed", fail)
    np.testing.assert_array_equal(answer(opened(files)), answer(opened(None)))
    assert written(tmp_path) == []


def test_a_session_opens_also_if_the_written_form_does_not(
    files: WeightFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> OnnxRuntimeSession:
        raise InvalidModel("ONNX Runtime refuses what it wrote", field="model")

    monkeypatch.setattr(session, "open_mapped", fail)
    np.testing.assert_array_equal(answer(opened(files)), answer(opened(None)))


def test_a_cancelled_load_ends_and_writes_nothing(files: WeightFiles, tmp_path: Path) -> None:
    token = CancelToken()
    token.cancel(Cancelled("nobody waits"))
    with pytest.raises(Cancelled):
        opened(files, token=token)
    assert written(tmp_path) == []


def test_a_model_that_the_runtime_refuses_raises_its_own_error(
    files: WeightFiles, tmp_path: Path
) -> None:
    broken = replace(source(), structure=b"not a model" * 200_000)
    with pytest.raises(InvalidModel):
        opened(files, broken)
    assert written(tmp_path) == []


def test_a_digest_tells_networks_apart_and_knows_them_again() -> None:
    changed = WEIGHT.copy()
    changed[7, 7] += 1
    other = MATMUL.replace("MatMul(x, w)", "Gemm(x, w)")
    digests = [
        packed.digest_of(of, provider)
        for of, provider in [
            (source(), Provider()),
            (source(weight=changed), Provider()),
            (source(weight=np.ascontiguousarray(WEIGHT.T)), Provider()),
            (source(other), Provider()),
            (replace(source(), is_safe=False), Provider()),
            (replace(source(), left_out=("Some",)), Provider()),
            (source(), Provider(keeps_int8=True)),
        ]
    ]
    assert len({*digests}) == len(digests)
    assert packed.digest_of(source(), Provider()) == digests[0]


def test_equal_sessions_are_one_until_the_last_user_has_left(files: WeightFiles) -> None:
    shared = SharedSessions(files)

    def of(threads: int = 1, keeps_int8: bool = False, keeps_state: bool = False) -> Any:
        how = Provider(keeps_int8=keeps_int8), SessionSettings(threads), CancelToken(), shared
        return packed.open_source(source(), *how, keeps_state)

    first = of()
    assert of() is first
    others = [of(threads=2), of(keeps_int8=True), of(keeps_state=True)]
    assert first not in others
    expected, gone = answer(first), weakref.ref(first)
    second = of()
    del first
    np.testing.assert_array_equal(answer(second), expected)
    del second
    assert gone() is None
    np.testing.assert_array_equal(answer(of()), expected)


def test_two_loads_at_a_time_get_one_session_and_a_cancelled_one_disturbs_no_other(
    files: WeightFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, both, open_mapped = SharedSessions(files), threading.Barrier(2), session.open_mapped

    def together(*how: Any) -> OnnxRuntimeSession:
        both.wait(30)
        return open_mapped(*how)

    def of(token: CancelToken) -> OnnxRuntimeSession:
        return packed.open_source(source(), Provider(), SessionSettings(), token, shared)

    opened(files)
    gone = CancelToken()
    gone.cancel(Cancelled("nobody waits"))
    with pytest.raises(Cancelled):
        of(gone)
    monkeypatch.setattr(session, "open_mapped", together)
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(of, [CancelToken(), CancelToken()])
    assert first is second
