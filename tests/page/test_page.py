"""The status page in a real browser: `make test-page`.

It needs Debian's chromium, and writes its screenshots to `.cache/page`. ``WRITE_PICTURES=1`` writes
the manual's pictures too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from headrace.server.access.token_file import add_token
from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import CALL_SECONDS, Server, is_running
from tests.support.certificates import Authority
from tests.support.crashing_device import CRASH
from tests.support.ports import held_port
from tests.support.traffic import AFFINITIES, INPUTS, MARKUP, Traffic, chain

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / ".cache/page"
CHROMIUM = shutil.which("chromium")
MANUAL = {"busy-desktop-light": "status-page-busy", "broken-phone-dark": "status-page-broken"}
MOST_HIGH = 2000
SECONDS = 60_000
SIZES = {"desktop": (1280, 900), "phone": (360, 780)}
CONFIG = """
devices = "CPU,TEMPLATE,HETERO,MULTI,BATCH,FRAGILE,MISSING"
[plugins.FRAGILE]
factory = "tests.support.crashing_device:create_plugin"
[plugins.FRAGILE.config]
ISOLATION = "PROCESS"
[plugins.MISSING]
factory = "tests.support.crashing_device:create_without_driver"
"""

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: apt-get install chromium"),
    pytest.mark.timeout(300),
]

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # As root, as in a container, Chromium has no sandbox.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def look(browser: Browser) -> Iterator[Open]:
    """Opens the page of a server. Afterwards, nothing in it has gone wrong."""
    wrong: list[str] = []
    with ExitStack() as opened:

        def look(
            server: Server, scheme: Any = "light", size: str = "desktop", *, tls: bool = False
        ) -> Page:
            width, height = SIZES[size]
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                ignore_https_errors=tls,
                reduced_motion="reduce",
            )
            opened.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(SECONDS)
            expect.set_options(timeout=SECONDS)
            address = f"{'https' if tls else 'http'}://{server.http}/"

            def asked(url: str) -> None:
                if not url.startswith((address, "data:")):
                    wrong.append(f"a request to {url}")

            def said(kind: str, text: str) -> None:
                # The browser itself reports replies such as 401, and a server that is gone.
                if not text.startswith("Failed to load resource"):
                    wrong.append(f"{kind}: {text}")

            page.on("request", lambda request: asked(request.url))
            page.on("console", lambda message: said(message.type, message.text))
            page.on("pageerror", lambda error: said("error", str(error)))
            page.goto(address)
            return page

        yield look
    assert not wrong


def shoot(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    if name in MANUAL and os.environ.get("WRITE_PICTURES"):
        with Image.open(path) as picture:
            width, height = picture.size
            small = picture.convert("RGB").crop((0, 0, width, min(height, MOST_HIGH))).quantize(64)
            small.save(REPOSITORY / f"docs/_static/{MANUAL[name]}.png", optimize=True)


def in_all_forms(look: Open, server: Server, name: str, settle: Callable[[Page], None]) -> None:
    """Shows the page wide and narrow, light and dark. It never has to be scrolled sideways."""
    for size in SIZES:
        for scheme in ("light", "dark"):
            page = look(server, scheme, size)
            settle(page)
            wide, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide <= room, f"{wide} pixels on a {size} of {room}"
            shoot(page, f"{name}-{size}-{scheme}")
            page.context.close()


def row(page: Page, table: str, name: str) -> Any:
    return page.locator(f"#{table}-table tr.row").filter(
        has=page.get_by_role("rowheader").get_by_text(name, exact=True)
    )


def cell(page: Page, table: str, name: str, label: str) -> Any:
    return row(page, table, name).locator(f'[data-label="{label}"]')


def documents(page: Page, number: int) -> None:
    """Waits until the page has asked so often from now on."""
    for _ in range(number):
        with page.expect_response(lambda reply: "/status" in reply.url):
            pass


def load(server: Server, name: str, device: str, model: Any = None, **fields: Any) -> None:
    data = (model or chain()).SerializeToString()
    source = pb.ModelSource(data=data)
    request = pb.LoadNetworkRequest(name=name, model=source, device=device, **fields)
    server.stub.LoadNetwork(request, timeout=CALL_SECONDS)


def serving(folder: Path, *options: str) -> Server:
    (folder / "headrace.toml").write_text(CONFIG)
    environment = {"PYTHONPATH": str(REPOSITORY)}
    return Server("--config", str(folder / "headrace.toml"), *options, environment=environment)


def noting(addresses: list[str]) -> Callable[[Any], None]:
    """Notes the addresses of requests."""
    return lambda request: addresses.append(request.url)


# -- an idle server --


def test_an_idle_server(look: Open, tmp_path: Path) -> None:
    with serving(tmp_path) as server:

        def settle(page: Page) -> None:
            expect(page.locator("#state")).to_have_text("● ready")
            expect(page.get_by_text("No network is loaded.")).to_be_visible()
            expect(page.get_by_text("No caller has got an error since the start.")).to_be_visible()
            documents(page, 1)

        in_all_forms(look, server, "idle", settle)
        page = look(server)
        settle(page)
        assert page.title() == "headrace: ready"
        expect(cell(page, "device", "CPU.0", "State")).to_have_text("● up")
        expect(cell(page, "device", "MISSING", "State")).to_have_text("■ down")
        expect(page.locator("#facts")).to_contain_text(server.address)
        assert page.locator("h1").count() == 1
        assert page.locator("table[id]:not(:has(caption))").count() == 0


def test_a_page_that_is_hidden_asks_for_nothing(look: Open, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        page = look(server)
        expect(page.locator("#state")).to_have_text("● ready")
        hide = (
            "(hidden) => { Object.defineProperty(document, 'hidden', {get: () => hidden, "
            "configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }"
        )
        page.evaluate(hide, True)
        asked: list[str] = []
        page.on("request", noting(asked))
        page.wait_for_timeout(5000)  # more than twice the time between two documents
        assert not asked
        with page.expect_response(lambda reply: reply.url.endswith("/status")):
            page.evaluate(hide, False)


def test_the_page_pauses_and_goes_on(look: Open, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        page = look(server)
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
        with page.expect_response(lambda reply: reply.url.endswith("/status")):
            page.get_by_role("button", name="Go on").click()


# -- a busy one --


def test_a_busy_server(look: Open, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        load(server, "plain", "CPU")
        load(server, "split", "HETERO:CPU,TEMPLATE", affinities=AFFINITIES)
        load(server, "either", "MULTI:CPU,TEMPLATE")
        load(server, "together", "BATCH:CPU(8)")
        shadow = pb.SetShadowRequest(network="plain", device="TEMPLATE", percent=100)
        server.stub.SetShadow(shadow, timeout=CALL_SECONDS)
        with suppress(grpc.RpcError):
            wrong = {"x": np.ones((1, 64), np.float64)}
            server.infer("plain", wrong, id="the-wrong-one")
        names = ("plain", "split", "either", "together", "together")
        with Traffic(server.connect, *names):

            def settle(page: Page) -> None:
                documents(page, 4)
                opener(page, "split").click()
                expect(page.locator(".picture g")).to_have_count(4)

            in_all_forms(look, server, "busy", settle)
            page = look(server)
            settle(page)
            looks_busy(page)
            shows_the_cut(page)
            shows_the_error(page)
            is_used_by_keyboard(page)
            filters(page)


def opener(page: Page, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def looks_busy(page: Page) -> None:
    for name in ("plain", "split", "either", "together"):
        expect(cell(page, "network", name, "Requests/s")).to_have_text(re.compile(r"^\d"))
        expect(cell(page, "network", name, "Requests/s")).not_to_have_text("0")
        times = cell(page, "network", name, "Time, p50 · p99")
        expect(times).to_have_text(re.compile(r"^[\d.,]+ (µs|ms|s) · [\d.,]+ (µs|ms|s)$"))
    expect(cell(page, "device", "CPU.0", "Streams busy")).to_contain_text("of")
    expect(row(page, "network", "plain")).to_contain_text("shadow on TEMPLATE")
    opener(page, "plain").click()
    expect(page.get_by_text("100 % of the requests, on TEMPLATE")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^\d[\d,]* equal, .* dropped$"))).to_be_visible()
    opener(page, "plain").click()
    opener(page, "either").click()
    expect(page.get_by_text("member_requests_total").first).to_be_visible()
    opener(page, "together").click()
    expect(page.get_by_role("heading", name="Notes of the load").first).to_be_visible()


def shows_the_cut(page: Page) -> None:
    """The names of layers are a stranger's. They are text and nothing else."""
    picture = page.get_by_role("img")
    label = picture.get_attribute("aria-label") or ""
    assert label.startswith("Subgraph 1 runs 2 layers on CPU and reads 1 tensor of the request; ")
    assert "Subgraph 2 runs 1 layer on TEMPLATE and reads 1 tensor of subgraph 1" in label
    expect(page.locator(".picture g title").first).to_contain_text(MARKUP)
    assert page.locator(".picture g text", has_text="reads 256 B").count() > 0
    assert page.locator("img").count() == 0
    assert page.title() == "headrace: ready"


def shows_the_error(page: Page) -> None:
    error = page.locator("#error-table tr.row").first
    expect(error).to_contain_text("INVALID_ARGUMENT")
    expect(error).to_contain_text("the-wrong-one")
    expect(error).to_contain_text("float64")
    expect(error.locator('[data-label="Network"]')).to_have_text("plain")


def is_used_by_keyboard(page: Page) -> None:
    button = opener(page, "plain")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    documents(page, 2)
    assert page.evaluate("document.activeElement.textContent") == "plain"
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "false")


def filters(page: Page) -> None:
    page.get_by_label("Filter by name").fill("toget")
    expect(page.locator("#network-table tr.row")).to_have_count(1)
    page.get_by_label("Filter by name").fill("nothing like it")
    expect(page.get_by_text("No network has this in its name.")).to_be_visible()


# -- a broken one --


def test_a_broken_server(look: Open, tmp_path: Path) -> None:
    """A device is down, another's process dies, a network of the repository cannot be loaded, and
    errors carry markup. Then the server stops, and then it is gone."""
    repository = tmp_path / "models"
    (repository / "damaged/1").mkdir(parents=True)
    (repository / "damaged/1/model.onnx").write_bytes(b"this is not a model")
    options = ("--model-repository", str(repository), "--grace-seconds", "300")
    with serving(tmp_path, *options) as server:
        endless = networks.endless()
        load(server, "fragile", "FRAGILE")
        load(server, "endless", "TEMPLATE", endless.model)
        with suppress(grpc.RpcError):
            server.infer("fragile", {"x": np.full((1, 64), CRASH, np.float32)}, id="the-crash")
        with suppress(grpc.RpcError):
            server.infer(f"{MARKUP}", INPUTS, id=MARKUP)

        def settle(page: Page) -> None:
            expect(cell(page, "device", "MISSING", "State")).to_have_text("■ down")
            expect(cell(page, "device", "FRAGILE.0", "Outages")).to_have_text("1")
            expect(cell(page, "network", "damaged", "State")).to_have_text("■ failed")
            expect(page.locator("#repository-table")).to_contain_text("damaged")
            documents(page, 1)

        in_all_forms(look, server, "broken", settle)
        page = look(server)
        settle(page)
        expect(row(page, "device", "MISSING")).to_contain_text("driver")
        expect(page.locator("#error-table")).to_contain_text(MARKUP)
        expect(page.locator("#error-table")).to_contain_text("the-crash")
        assert page.locator("img").count() == 0
        held = server.start("endless", endless.inputs)
        while not is_running(server, "TEMPLATE"):
            page.wait_for_timeout(20)
        server.terminate()
        expect(page.locator("#state")).to_have_text("▲ shutting down")
        shoot(page, "stopping-desktop-light")
        server.kill()
        held.cancel()
        expect(page.locator("#state")).to_contain_text("no answer from the server, since")
        expect(page.locator("body")).to_have_class("stale")
        assert page.title().startswith("headrace: no answer from the server")
        shoot(page, "gone-desktop-light")


def test_a_server_that_comes_back_is_shown_again(look: Open, tmp_path: Path) -> None:
    port = str(held_port())
    with serving(tmp_path, "--http-port", port) as server:
        page = look(server)
        expect(page.locator("#state")).to_have_text("● ready")
        server.kill()
        expect(page.locator("#state")).to_contain_text("no answer")
    with serving(tmp_path, "--http-port", port):
        expect(page.locator("#state")).to_have_text("● ready")
        expect(page.locator("body")).not_to_have_class("stale")


# -- TLS and tokens --


def test_over_tls_the_page_asks_for_a_token(look: Open, tmp_path: Path) -> None:
    certificate, key = Authority().server().write(tmp_path, "server")
    tokens = tmp_path / "tokens.toml"
    token = add_token(tokens, "reader", ("read",))
    with serving(
        tmp_path,
        "--tls-cert",
        str(certificate),
        "--tls-key",
        str(key),
        "--tokens",
        str(tokens),
    ) as server:
        for size, scheme in (("desktop", "light"), ("phone", "dark")):
            page = look(server, scheme, size, tls=True)
            asked: list[str] = []
            page.on("request", noting(asked))
            expect(page.get_by_label("Token")).to_be_focused()
            expect(page.locator("#main")).to_be_hidden()
            shoot(page, f"token-{size}-{scheme}")
            page.get_by_label("Token").fill("hr_wrong")
            page.keyboard.press("Enter")
            expect(page.locator("#why")).to_contain_text("the token is not valid")
            page.get_by_label("Token").fill(token)
            page.keyboard.press("Enter")
            expect(page.locator("#state")).to_have_text("● ready")
            expect(page.locator("#server-facts")).to_contain_text("you are token:reader (read)")
            expect(page.locator("#server-facts")).to_contain_text("expires in")
            assert not [url for url in asked if token in url or token in page.url]
            page.reload()
            expect(page.locator("#state")).to_have_text("● ready")
            assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
            page.get_by_role("button", name="Forget the token").click()
            expect(page.get_by_label("Token")).to_be_visible()
            assert page.evaluate("sessionStorage.length") == 0
