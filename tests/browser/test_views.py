"""What each view shows after a scripted load, on every screen, whatever users call themselves."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import NAUGHTY, PHONE, OpenPage, Served
from tests.conftest import StartCluster

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]
VIEWS = ("overview", "nodes", "prefixes", "requests", "refusals")
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def row(page: Page, name: str) -> Locator:
    return page.locator(".request", has=page.get_by_text(name, exact=True))


def source_texts(bill: dict[str, Any]) -> list[str]:
    """What the line of a request says of where its prompt came from."""
    cached = f"{bill['cached_tokens']:,}"
    return {
        "none": ["all computed"],
        "local": [f"{cached} local pool"],
        "remote": [f"{cached} other node"],
        "mixed": ["local pool", "other node"],
    }[bill["cached_from"]]


def show(page: Page, view: str) -> None:
    page.locator(f"#tabs a[href='#{view}']").click()
    expect(page.locator("#tabs a[aria-current]")).to_have_attribute("href", f"#{view}")


def test_the_overview_tells_how_the_cluster_does(served: Served, open_page: OpenPage) -> None:
    page = open_page(served.url)
    expect(page.locator("#health")).to_have_text("healthy")
    expect(page.locator("#live")).to_have_text("● live")
    requests = page.locator(".tile", has_text="in 5 min")
    expect(requests.locator(".big")).to_have_text("7")
    refused = page.locator(".tile", has_text="Not answered")
    expect(refused).to_contain_text("1 refused")
    expect(page.locator(".tile", has_text="Effective capacity").locator(".big")).to_have_text(
        "86 %"
    )
    for name in ("Prompt tokens by source", "Time to first token", "Targets", "Requests"):
        chart = page.locator("figure", has=page.get_by_role("heading", name=name, exact=True))
        expect(chart.locator("svg rect, svg polyline").first).to_be_attached()
    processes = page.locator(".processes")
    for name in ("gateway-2", "conductor-1", "cache-index-1", "node-2", "decode-1"):
        expect(processes).to_contain_text(name)


def test_nodes_links_and_instances_are_shown(served: Served, open_page: OpenPage) -> None:
    page = open_page(served.url)
    show(page, "nodes")
    node = page.locator(".node[data-key='node-1']")
    expect(node).to_contain_text("DRAM pool")
    expect(node).to_contain_text(re.compile(r"cached [1-9]"))
    expect(node).to_contain_text("makes room below")
    expect(node).to_contain_text("decode-1, prefill-1")
    expect(node).to_contain_text("MOONPOOL_SSD_DIR")
    link = page.locator("tr[data-key='node-1 node-2']")
    expect(link).to_contain_text("✓good")
    expect(link).to_contain_text(re.compile(r"[1-9][0-9.]* (k|M)B$"))
    instance = page.locator("tr[data-key='decode decode-2']")
    expect(instance).to_contain_text("of 8,192 tokens")


def test_hot_prefixes_name_the_nodes_that_hold_them(served: Served, open_page: OpenPage) -> None:
    page = open_page(served.url)
    show(page, "prefixes")
    hot = page.locator("section", has_text="Hot prefixes").locator("tbody tr").first
    expect(hot).to_contain_text("● holds")


def test_a_request_opens_with_its_bill_and_all_candidates(
    served: Served, open_page: OpenPage
) -> None:
    page = open_page(served.url)
    show(page, "requests")
    expect(page.locator(".request")).to_have_count(7)
    for name, bill in served.bills.items():
        for text in source_texts(bill):
            expect(row(page, name)).to_contain_text(text)
        expect(row(page, name)).to_contain_text(f"{bill['prefill']} → {bill['decode']}")
        expect(row(page, name)).to_contain_text("✓ target met")
        assert row(page, name).locator("svg.timeline rect").count() >= 2
    page.get_by_text(NAUGHTY, exact=True).click()
    detail = page.locator(".detail")
    for stage in ("queue", "fetch", "compute", "to token 0", "transfer to decode", "decode"):
        expect(detail.locator("table").first).to_contain_text(stage)
    candidates = detail.locator(".decision table")
    expect(candidates.locator("tbody tr")).to_have_count(2)
    expect(candidates.locator("tr.is-chosen")).to_contain_text("chosen; really")
    expect(candidates).to_contain_text("prefill-1")
    expect(candidates).to_contain_text("prefill-2")
    expect(detail).to_contain_text("All that lost: 1 ×")


def test_requests_can_be_found_sorted_and_filtered(served: Served, open_page: OpenPage) -> None:
    page = open_page(served.url + "#requests")
    page.locator("#find").fill("elsew")
    expect(page.locator(".request")).to_have_count(1)
    page.locator("#find").fill("no such thing")
    expect(page.locator("#view")).to_contain_text("None of the last requests is like that")
    page.locator("#find").fill("")
    page.locator("#ending").select_option("refused")
    expect(page.locator(".request")).to_have_count(1)
    expect(page.locator(".request")).to_contain_text("overloaded: TTFT would be")
    page.locator("#ending").select_option("")
    page.locator("#order").select_option("prompt")
    expect(page.locator(".request").last).to_contain_text(re.compile("cold|too-late"))


def test_refusals_say_why(served: Served, open_page: OpenPage) -> None:
    page = open_page(served.url)
    expect(page.locator("#tabs .mark")).to_have_text("1")
    show(page, "refusals")
    expect(page.locator(".reasons")).to_contain_text("overloaded")
    expect(page.locator(".reasons")).to_contain_text("TTFT would be")
    page.get_by_role("link", name="too-late").click()
    expect(page.locator(".detail .decision")).to_contain_text("allowed")


def test_what_users_send_is_only_ever_text(served: Served, open_page: OpenPage) -> None:
    page = open_page(served.url)
    for view in VIEWS:
        show(page, view)
        expect(page.locator("main img")).to_have_count(0)
    show(page, "requests")
    expect(page.get_by_text(NAUGHTY, exact=True)).to_be_visible()
    # Even a mistake in a script could not do it: the policy refuses markup.
    refused = page.evaluate(
        "(() => { try { document.body.innerHTML += '<i></i>' } catch (e) { return e.name } })()"
    )
    assert refused == "TypeError"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_fits_a_phone(served: Served, open_page: OpenPage, scheme: str) -> None:
    page = open_page(served.url, viewport=PHONE, color_scheme=scheme)
    for view in VIEWS:
        show(page, view)
        expect(page.locator("main .view")).to_be_visible()
        if view == "requests":
            page.get_by_text("remote", exact=True).click()
            expect(page.locator(".detail .decision")).to_be_visible()
        too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert too_wide <= 0, f"{view} is {too_wide} px too wide"


def test_dark_follows_the_system_until_the_user_chooses(
    served: Served, open_page: OpenPage
) -> None:
    page = open_page(served.url, color_scheme="dark")
    dark = page.evaluate(BACKGROUND)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(BACKGROUND)
    assert dark != light
    page.locator("#theme").click()
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_contain_text("dark")
    assert page.evaluate(BACKGROUND) == dark
    page.reload()
    assert page.evaluate(BACKGROUND) == dark


def test_an_empty_cluster_says_what_to_do(open_page: OpenPage, start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1)
    page = open_page(f"{cluster.base_url}/dashboard")
    expect(page.locator("#view")).to_contain_text("moonpool chat")
    show(page, "requests")
    expect(page.locator("#view")).to_contain_text("No request yet")
    show(page, "nodes")
    expect(page.locator("#view")).to_contain_text("Nothing has moved between nodes yet")
    show(page, "refusals")
    expect(page.locator("#view")).to_contain_text("Nothing was refused")
