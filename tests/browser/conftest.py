"""A Chromium of this machine, and a cluster that has served a scripted load."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.support.api import Api, on_nodes
from tests.support.cluster import DUMMY_MODEL, HostedCluster, dummy_options

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 30_000
NAUGHTY = "<img/src=x/onerror=alert(1)>"
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
OpenPage = Callable[..., Page]


@dataclass(frozen=True, slots=True)
class Served:
    """A cluster after the scripted load."""

    cluster: HostedCluster
    api: Api

    @property
    def url(self) -> str:
        return f"{self.cluster.base_url}/dashboard/"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """`open_page(url, viewport=..., color_scheme=...)`; the page may complain of nothing."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def note(message: Any) -> None:
        # A feed that breaks or a key that is refused shows on the console; that is no fault.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def opened(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Two nodes, two gateways: a cold run, a local hit, a remote one, a refusal, a bad name."""
    with HostedCluster(dummy_options(gateways=2)) as cluster:
        api = Api(cluster.base_url, cluster.admin_key, DUMMY_MODEL)
        load(api, Api(cluster.base_urls[1], cluster.admin_key, DUMMY_MODEL))
        yield Served(cluster, api)


def load(first: Api, second: Api) -> None:
    """Seven requests; two of them at the other gateway, one of these is refused."""
    trunk = [7 * number % 400 + 3 for number in range(1_100)]
    ask(first, trunk, "cold", placement=on_nodes(1, 1))
    ask(first, [*trunk, 5], "local", placement=on_nodes(1, 1))
    ask(first, [*trunk, 6], "remote", placement=on_nodes(2, 2))
    ask(first, [*trunk, 7], "across", placement=on_nodes(1, 2))
    ask(first, [*trunk, 8], NAUGHTY, user=NAUGHTY)
    ask(second, [*trunk, 9], "elsewhere")
    ask(second, [*reversed(trunk)], "too-late", status=429, target_ms="0.01")


def ask(
    api: Api,
    prompt: list[int],
    name: str,
    *,
    status: int = 200,
    target_ms: str = "60000",
    **fields: Any,
) -> None:
    response = httpx.post(
        f"{api.base_url}/v1/completions",
        json=api.body(prompt, **fields),
        headers=api.headers | {"x-request-id": name, "x-moonpool-ttft-slo-ms": target_ms},
        timeout=60,
        trust_env=False,
    )
    assert response.status_code == status, response.text
