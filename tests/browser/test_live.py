"""The page while things happen: deaths, a hidden tab, a key that is needed, many requests."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, Served
from tests.conftest import StartCluster
from tests.support.cluster import DUMMY_MODEL

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]
PATIENCE_MS = 60_000
KEYS = json.dumps({"team": {"keys": ["a tenant's key"]}})
NUM_MANY = 1_000
HIDE = """value => {
  Object.defineProperty(document, "hidden", { value, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
PAINT = """() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
  rows: performance.getEntriesByName("moonpool-drawn")[0]?.startTime,
})"""


@pytest.mark.parametrize("name", ["prefill-1", "conductor-1"])
def test_a_service_that_dies_is_shown_and_seen_to_come_back(
    served: Served, open_page: OpenPage, name: str
) -> None:
    page = open_page(served.url)
    expect(page.locator("#health")).to_have_text("healthy")
    served.cluster.stop(name)
    try:
        expect(page.locator("#banner")).to_contain_text(f"{name} is gone", timeout=PATIENCE_MS)
        expect(page.locator("#health")).to_contain_text("problem")
        expect(page.locator("#live")).to_have_text("● live")
        expect(page.locator(".processes li", has_text=name)).to_contain_text("gone")
    finally:
        served.cluster.start_again(name)
    expect(page.locator("#health")).to_have_text("healthy", timeout=PATIENCE_MS)
    expect(page.locator("#banner")).to_be_hidden()


def test_a_page_comes_back_to_a_gateway_that_was_killed(
    served: Served, open_page: OpenPage
) -> None:
    page = open_page(served.url)
    expect(page.locator("#live")).to_have_text("● live")
    served.cluster.stop("gateway-1")
    try:
        expect(page.locator("#live")).to_have_text("○ not live", timeout=PATIENCE_MS)
        expect(page.locator("#banner")).to_contain_text("No news from the gateway")
    finally:
        served.cluster.start_again("gateway-1")
    expect(page.locator("#live")).to_have_text("● live", timeout=PATIENCE_MS)


def test_a_hidden_tab_has_no_feed_and_draws_nothing(served: Served, open_page: OpenPage) -> None:
    page = open_page(served.url)
    expect(page.locator("#live")).to_have_text("● live")
    with page.expect_event("requestfailed", lambda one: one.url.endswith("/events")):
        page.evaluate(HIDE, True)
    num_drawn = drawn(page)
    page.evaluate("dispatchEvent(new Event('hashchange'))")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert drawn(page) == num_drawn
    with page.expect_request(lambda one: one.url.endswith("/events")):
        page.evaluate(HIDE, False)
    page.wait_for_function(
        "before => performance.getEntriesByName('moonpool-drawn').length > before", arg=num_drawn
    )


def drawn(page: Page) -> int:
    count: int = page.evaluate("performance.getEntriesByName('moonpool-drawn').length")
    return count


def test_with_keys_the_page_asks_for_the_admin_key_and_keeps_it_for_the_tab(
    open_page: OpenPage, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(nodes=1, extra_env={"gateway": {"MOONPOOL_API_KEYS": KEYS}})
    page = open_page(f"{cluster.base_url}/dashboard/")
    expect(page.locator("#login")).to_contain_text("needs the admin key")
    page.locator("#key").fill("a tenant's key")
    page.keyboard.press("Enter")
    expect(page.locator("#login [role=alert]")).to_have_text("This key is not the admin key.")
    page.locator("#key").fill(cluster.admin_key)
    page.get_by_role("button", name="Show the dashboard").click()
    expect(page.locator("#live")).to_have_text("● live")
    page.reload()
    expect(page.locator("#live")).to_have_text("● live")
    assert page.evaluate("localStorage.getItem('moonpool-admin-key')") is None


def ask_many(url: str, count: int) -> None:
    with httpx.Client(trust_env=False, timeout=60) as client, ThreadPoolExecutor(12) as threads:

        def ask(number: int) -> None:
            body = {"model": DUMMY_MODEL, "prompt": [number % 500 + 3] * 20, "max_tokens": 1}
            client.post(f"{url}/v1/completions", json=body).raise_for_status()

        for _ in threads.map(ask, range(count)):
            continue


def test_a_thousand_requests_are_shown_at_once(
    open_page: OpenPage, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(nodes=1)
    ask_many(cluster.base_url, NUM_MANY)
    page = open_page("about:blank")
    page.goto(f"{cluster.base_url}/dashboard/#requests")
    expect(page.locator(".request")).to_have_count(25)
    times = page.evaluate(PAINT)
    # Printed, not judged: it says as much about the machine as about the page.
    print(
        f"\nwith {NUM_MANY} recent requests: first paint after {times['paint']:.0f} ms, "
        f"requests drawn after {times['rows']:.0f} ms"
    )
    expect(page.locator(".controls")).to_contain_text(f"{NUM_MANY:,} of the last {NUM_MANY:,}")
    page.locator("#more").click()
    expect(page.locator(".request")).to_have_count(50)
