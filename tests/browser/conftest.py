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
    bills: dict[str, dict[str, Any]]
    """What each answered request was billed, by what its client called it."""

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
        # A feed that breaks and a key that is refused show on the console; they are no fault.
        # A script that inserts markup raises an error, too.
        is_expected = any(text in message.text for text in ("Failed to load", "TrustedHTML"))
        if message.type in ("error", "warning") and not is_expected:
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
        apis = [Api(url, cluster.admin_key, DUMMY_MODEL) for url in cluster.base_urls]
        yield Served(cluster, load(*apis))


def load(first: Api, second: Api) -> dict[str, dict[str, Any]]:
    """Seven requests; two of them at the other gateway, one of these is refused."""
    trunk = [7 * number % 400 + 3 for number in range(1_100)]
    fetch = {"policy": "global_cache_aware"}
    ask(second, [*reversed(trunk)], "too-late", status=429, target_ms="0.01")
    return {
        "cold": ask(first, trunk, "cold", placement=on_nodes(1, 1)),
        "local": ask(first, [*trunk, 5], "local", placement=on_nodes(1, 1)),
        "remote": ask(first, [*trunk, 6], "remote", placement=on_nodes(2, 2), **fetch),
        "across": ask(first, [*trunk, 7], "across", placement=on_nodes(1, 2)),
        NAUGHTY: ask(first, [*trunk, 8], NAUGHTY, user=NAUGHTY),
        "elsewhere": ask(second, [*trunk, 9], "elsewhere"),
    }


def ask(
    api: Api,
    prompt: list[int],
    name: str,
    *,
    status: int = 200,
    target_ms: str = "60000",
    **fields: Any,
) -> dict[str, Any]:
    """Its bill; nothing for one that is refused, as `status` says it is."""
    response = httpx.post(
        f"{api.base_url}/v1/completions",
        json=api.body(prompt, **fields),
        headers=api.headers | {"x-request-id": name, "x-moonpool-ttft-slo-ms": target_ms},
        timeout=60,
        trust_env=False,
    )
    assert response.status_code == status, response.text
    bill: dict[str, Any] = response.json().get("moonpool", {})
    return bill
