"""Which providers a library offers; ONNX Runtime is on paper here."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.plugins.provider.backend import library
from headrace.runtime.errors import Unavailable

PATH = "/folder/libprovider.so"


def offer(name: str, kind: str = "GPU", path: str = PATH, **metadata: str) -> Any:
    hardware = SimpleNamespace(
        type=SimpleNamespace(name=kind),
        vendor="Maker",
        vendor_id=0x1234,
        device_id=0x5678,
        metadata=metadata,
    )
    return SimpleNamespace(
        ep_name=name,
        ep_vendor="Author",
        ep_metadata={"library_path": path, "version": "1.2"},
        device=hardware,
    )


class PaperRuntime:
    """Offers `has` once the library is registered."""

    def __init__(self, *has: Any) -> None:
        self.has = has
        self.registered: list[str] = []

    def register_execution_provider_library(self, name: str, path: str) -> None:
        self.registered.append(name)

    def unregister_execution_provider_library(self, name: str) -> None:
        self.registered.remove(name)

    def get_ep_devices(self) -> list[Any]:
        return [offer("Other", path="/other.so"), *(self.has if self.registered else ())]

    def get_hardware_devices(self) -> list[Any]:
        return [offer("", "CPU").device]


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def runtime(*has: Any) -> PaperRuntime:
        made = PaperRuntime(*has)
        monkeypatch.setattr(library, "onnxruntime", made)
        monkeypatch.setattr(library, "binding", made)
        return made

    return runtime


@pytest.mark.parametrize("function", ["get_library_path", "get_ep_name"])
def test_clients_do_not_see_where_a_package_misses_its_library(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def fails() -> str:
        raise FileNotFoundError(f"no library in {PATH}")

    module = SimpleNamespace(**{"get_library_path": lambda: PATH, function: fails})
    monkeypatch.setitem(sys.modules, "paper_package", module)
    with pytest.raises(Unavailable, match=r"no library: no library in libprovider.so$"):
        library.from_package("paper_package")


def names(found: Any) -> list[str]:
    return [each.ep_name for each in found]


def test_it_offers_one_provider_on_each_device(of: Any) -> None:
    of(offer("A"), offer("A", "NPU"))
    assert names(library.offered(PATH, "", "DEVICE")) == ["A", "A"]


def test_a_library_is_registered_once_under_the_providers_name(of: Any) -> None:
    runtime = of(offer("A"))
    library.offered(PATH, "A", "DEVICE")
    library.offered(PATH, "A", "DEVICE")
    assert runtime.registered == ["A"]


def test_one_of_several_providers_has_to_be_named(of: Any) -> None:
    of(offer("A"), offer("B"), offer("B"))
    assert names(library.offered(PATH, "B", "DEVICE")) == ["B", "B"]
    with pytest.raises(Unavailable, match=r"libprovider.so has the providers A, B; name one"):
        library.offered(PATH, "", "DEVICE")
    with pytest.raises(Unavailable, match="has the providers A, B"):
        library.offered(PATH, "C", "DEVICE")


def test_a_library_that_offers_nothing_is_tried_again_later(of: Any) -> None:
    runtime = of()
    with pytest.raises(Unavailable, match=r"offers no device here.*Maker CPU 0x5678.*driver"):
        library.offered(PATH, "A", "DEVICE")
    assert runtime.registered == []
    runtime.has = (offer("A"),)
    assert names(library.offered(PATH, "A", "DEVICE")) == ["A"]


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (offer("A", "GPU", Discrete="1"), "DISCRETE"),
        (offer("A", "GPU"), "INTEGRATED"),
        (offer("A", "NPU"), "INTEGRATED"),
        (offer("A", "CPU"), "EMULATED"),
    ],
)
def test_a_device_says_what_kind_it_is(made: Any, kind: str) -> None:
    assert library.device_type(made) == kind


def test_a_device_has_the_name_of_its_hardware_and_of_its_provider() -> None:
    assert library.full_name(offer("A")) == "Maker GPU 0x5678, A 1.2 of Author"
    named = offer("A", Description="Maker Model 7")
    assert library.full_name(named) == "Maker Model 7, A 1.2 of Author"
