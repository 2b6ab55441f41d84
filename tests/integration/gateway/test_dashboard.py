"""The dashboard without a browser: its files, who may see its data, and its one live feed."""

import asyncio
import json
import logging
import re
import socket
from typing import Any

import pytest

from services.gateway.dashboard import feed as feeds
from services.gateway.dashboard import routes
from services.gateway.dashboard.feed import Feed
from services.gateway.dashboard.pages import pages
from services.gateway.dashboard.viewer import MAX_WAITING, Viewer
from tests.integration.gateway.conftest import ADMIN_KEY, Rig, running_rig
from tests.support.deadline import until
from tests.support.fake_cluster import MODEL
from tests.support.feed import reading
from tests.support.servers import TestServer

pytestmark = pytest.mark.integration
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]}
NAUGHTY = '<img/src=x/onerror="alert(1)">'
KEYS = json.dumps({"team": {"keys": ["a tenant's key"]}})


def feed_of(rig: Rig) -> Feed:
    feed = rig.service._feed
    assert feed is not None
    return feed


async def test_every_page_comes_with_a_strict_policy_and_needs_nothing_from_elsewhere(
    rig: Rig,
) -> None:
    moved = await rig.http.get("/dashboard")
    assert moved.headers["location"] == "dashboard/"
    for name in ["", *pages()]:
        response = await rig.http.get(f"/dashboard/{name}")
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        elsewhere = re.findall(r"https?://[^\s\"')]+", response.text)
        assert set(elsewhere) <= {"http://www.w3.org/2000/svg"}


async def test_a_page_that_is_known_is_not_sent_again(rig: Rig) -> None:
    first = await rig.http.get("/dashboard/main.js")
    again = await rig.http.get(
        "/dashboard/main.js", headers={"if-none-match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpages.py", "%2e%2e/pages.py", "__init__.py"])
async def test_nothing_but_its_own_files_is_served(rig: Rig, name: str) -> None:
    assert (await rig.http.get(f"/dashboard/{name}")).status_code == 404


def test_scripts_never_insert_markup() -> None:
    for name, page in pages().items():
        found = re.findall(
            rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\son\w+=", page.content
        )
        assert not found, f"{name}: {found}"


async def test_the_feed_begins_with_all_and_goes_on_with_what_is_new(rig: Rig) -> None:
    async with reading(rig.http) as reader:
        kind, data = await reader.next()
        assert kind == "snapshot"
        assert set(data) == {
            "now_s", "cluster", "nodes", "links", "instances", "index", "hot", "summary",
            "series", "requests",
        }  # fmt: skip
        response = await rig.http.post(
            "/v1/chat/completions",
            json=BODY | {"user": NAUGHTY},
            headers={"x-request-id": NAUGHTY},
        )
        assert response.status_code == 200
        await reader.until(lambda one: one.requests)
        row = reader.requests[0]
        assert (row["id"], row["user"], row["ending"]) == (NAUGHTY, NAUGHTY, "finished")
        assert row["prefill"] == "p0"
        await reader.until(lambda one: one.state["summary"]["asked"] == 1)
        detail = (await rig.http.get(f"/dashboard/requests/{row['key']}")).json()
        assert detail["decisions"][0]["placement"]["policy"] == "fake"
        assert detail["bill"]["output_tokens"] == row["output_tokens"]
        # A page that comes later is told the same at once.
        async with reading(rig.http) as later:
            await later.next()
            assert later.requests == reader.requests


async def test_instances_are_seen_as_they_report(rig: Rig) -> None:
    async with reading(rig.http) as reader:
        await reader.next()
        await rig.cluster.get("p0").report(queued_requests=7)

        def is_seen(one: Any) -> bool:
            found = {line["id"]: line for line in one.state["instances"]}
            return "p0" in found and found["p0"]["queued_requests"] == 7

        await reader.until(is_seen)


async def test_nothing_is_asked_or_heard_when_nobody_looks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LINGER_S", 0.0)
    feed = feed_of(rig)
    num_before = len(rig.context.bus.client._subs)
    async with reading(rig.http) as reader:
        await reader.next()
        assert feed.is_running
    await until(lambda: not feed.is_running, what="the feed ended")
    assert feed.num_viewers == 0
    assert len(rig.context.bus.client._subs) == num_before
    async with reading(rig.http) as reader:
        assert (await reader.next())[0] == "snapshot"


async def test_all_pages_share_one_collector_and_there_is_a_limit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_VIEWERS", 2)
    async with reading(rig.http) as first, reading(rig.http) as second:
        await first.next()
        collector = feed_of(rig)._collector
        await second.next()
        assert feed_of(rig)._collector is collector
        refused = await rig.http.get("/dashboard/events")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "too_many_viewers"
    await until(lambda: feed_of(rig).num_viewers == 0, what="both left")
    async with reading(rig.http) as reader:
        await reader.next()


def test_a_viewer_that_does_not_read_is_dropped_with_what_waits_for_it() -> None:
    viewer = Viewer()
    for _ in range(MAX_WAITING):
        viewer.give(b"x")
    assert not viewer.is_ended
    viewer.give(b"x")
    assert viewer.is_ended
    assert viewer.was_slow
    assert not viewer._waiting


async def test_a_client_that_stops_reading_is_cut_off(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(routes, "SEND_TIMEOUT_S", 0.3)
    feed = feed_of(rig)
    host, port = rig.url.removeprefix("http://").split(":")
    with socket.socket() as client, caplog.at_level(logging.WARNING):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await asyncio.to_thread(client.connect, (host, int(port)))
        client.sendall(b"GET /dashboard/events HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: feed.num_viewers == 1, what="it looks")
        [viewer] = feed._viewers
        big = b"event: update\ndata: {}\n: " + b"x" * 4_000_000 + b"\n\n"

        def is_gone() -> bool:
            viewer.give(big)
            return feed.num_viewers == 0

        await until(is_gone, timeout_s=20, what="it is dropped")
        client.settimeout(10)

        def read_all() -> int:
            total = 0
            try:
                while part := client.recv(1 << 20):
                    total += len(part)
            except ConnectionResetError:
                pass
            return total

        # What the kernel had is all that comes, not what waited in the gateway.
        assert await asyncio.to_thread(read_all) < len(big)
    assert "ASGI" not in caplog.text


async def test_with_keys_the_data_is_the_operators_and_the_pages_are_everybodys(
    nats_url: str,
) -> None:
    async with running_rig(nats_url, api_keys=KEYS) as rig:
        assert (await rig.http.get("/dashboard/")).status_code == 200
        for path in ("/dashboard/events", "/dashboard/requests/x"):
            nobody = await rig.http.get(path)
            assert nobody.status_code == 401
            tenant = {"authorization": "Bearer a tenant's key"}
            refused = await rig.http.get(path, headers=tenant)
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "admin_key_required"
        async with reading(rig.http, ADMIN_KEY) as reader:
            assert (await reader.next())[0] == "snapshot"


async def test_a_request_that_is_not_known_is_a_clear_404(rig: Rig) -> None:
    response = await rig.http.get("/dashboard/requests/nope")
    assert response.status_code == 404
    assert "load the page again" in response.json()["error"]["message"]


async def test_pages_outlive_a_restart_of_nats(own_nats: TestServer) -> None:
    async with running_rig(own_nats.url) as rig, reading(rig.http) as reader:
        await reader.next()
        await asyncio.to_thread(own_nats.stop)
        await reader.until(lambda one: not one.state["cluster"]["is_connected"])
        [problem] = reader.state["cluster"]["problems"]
        assert "NATS" in problem
        await asyncio.to_thread(own_nats.start)
        await reader.until(lambda one: one.state["cluster"]["is_connected"])
        await rig.cluster.get("p0").report(queued_requests=3)
        await reader.until(
            lambda one: any(line["queued_requests"] == 3 for line in one.state["instances"])
        )


async def test_open_pages_do_not_hold_up_the_end_of_the_gateway(nats_url: str) -> None:
    async with running_rig(nats_url) as rig, reading(rig.http) as reader:
        await reader.next()
        await rig.service.stop()
        with pytest.raises(EOFError):
            await reader.until(lambda _: False)
