"""Bad bytes on every subject that a service hears and on every HTTP endpoint of a cluster.

Whoever asks gets a clear error, somebody counts it, and nobody else is hit.
"""

import asyncio
from typing import Any

import httpx
import hypothesis
import nats.errors
import pytest
from hypothesis import strategies as st

from services.gateway.openapi import openapi_document
from shared.messages import subjects
from shared.messages.access import ACCESS
from shared.messages.reports import PingReply
from shared.runtime.bus import Bus, error_of
from shared.runtime.lifecycle import PingRequest
from tests.support.api import NO_TLS, Api
from tests.support.bad_bytes import HUGE, payloads
from tests.support.cluster import DUMMY_MODEL, HostedCluster
from tests.support.load import Load

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
MEMBERS = {
    "gateway": "gateway-1",
    "conductor": "conductor-1",
    "cache-index": "cache-index-1",
    "transfer": "node-1",
    "prefill": "prefill-1",
    "decode": "decode-1",
}
EXAMPLES = 5
PLAINLY: dict[str, Any] = {"timeout": 10, "trust_env": False, "verify": NO_TLS}
PROMPT = [5] * 300


@pytest.fixture(scope="module")
def cluster(dummy_cluster: HostedCluster) -> HostedCluster:
    """The one of all tests: nothing here may hit the others."""
    return dummy_cluster


def heard() -> list[str]:
    """Every subject that our services listen to; a worker may hear those of both roles."""
    found = set()
    for access in ACCESS.values():
        for pattern in access.subscribe:
            parts = pattern.split(".")
            if parts[0] == subjects.PREFIX:
                owner = next((part for part in parts if part in MEMBERS), "gateway")
                found.add(pattern.replace("*", MEMBERS[owner]))
    return sorted(found)


async def send(bus: Bus, subject: str, payload: bytes) -> str:
    """The error code that is answered; empty for a good answer or none."""
    try:
        answer = await bus.client.request(subject, payload, timeout=2)
    except (nats.errors.TimeoutError, nats.errors.NoRespondersError, TimeoutError):
        return ""
    is_error = "Nats-Service-Error-Code" in (answer.headers or {})
    return str(error_of(answer).code) if is_error else ""


def count_bad(cluster: HostedCluster) -> int:
    bus, call = cluster.cluster.bus, cluster.call
    replies = [
        call(bus.request(subjects.ping(*member), PingRequest(), PingReply, timeout_s=5))
        for member in MEMBERS.items()
    ]
    return sum(reply.bad_messages_total for reply in replies)


def is_question(subject: str) -> bool:
    """Answered by an endpoint; the others are plain subscriptions."""
    plain = (
        subjects.CONDUCTOR_ASKED,
        subjects.CONDUCTOR_MISSES,
        subjects.CONDUCTOR_OUTCOMES,
        subjects.FINISHED_BILLS,
        subjects.INDEX_EXPECTED,
        subjects.INDEX_HEAT,
        subjects.INDEX_NODE_SEEN,
    )
    kinds = (".report.", ".tokens.", ".index.events.", ".kv")
    return subject not in plain and not any(kind in subject for kind in kinds)


def test_the_list_holds_questions_and_plain_subscriptions() -> None:
    kinds = [is_question(one) for one in heard()]
    assert sum(kinds) > 15
    assert len(kinds) - sum(kinds) > 8


@pytest.mark.parametrize("subject", heard())
def test_bad_bytes_on_a_subject(cluster: HostedCluster, subject: str) -> None:
    bus, call = cluster.cluster.bus, cluster.call
    before = count_bad(cluster)

    @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None)
    @hypothesis.given(st.lists(payloads(["v", "ref", "model", "chain", "node"]), max_size=4))
    def is_refused(batch: list[bytes]) -> None:
        async def send_all() -> None:
            for payload in [*batch, b"\xc1"]:
                if is_question(subject):
                    code = await send(bus, subject, payload)
                    assert code in ("", "bad_request"), code
                else:
                    await bus.client.publish(subject, payload)

        call(send_all())

    is_refused()
    if is_question(subject):
        assert call(send(bus, subject, HUGE)) == "bad_request"
        return
    call(bus.client.publish(subject, HUGE))
    call(bus.flush())
    assert count_bad(cluster) >= before + EXAMPLES


@pytest.mark.parametrize(
    "path",
    [
        path
        for path, methods in openapi_document([], needs_key=False)["paths"].items()
        if "post" in methods
    ],
)
def test_bad_bytes_on_an_endpoint(cluster: HostedCluster, path: str) -> None:
    @hypothesis.settings(max_examples=2 * EXAMPLES, deadline=None, database=None)
    @hypothesis.given(payloads(["model", "prompt", "messages", "max_tokens"]))
    def is_refused(payload: bytes) -> None:
        url = f"{cluster.base_url}{path}"
        answer = httpx.post(url, content=payload, **PLAINLY)
        assert answer.status_code in (400, 404), answer.text
        assert answer.json()["error"]["message"]

    is_refused()
    url = f"{cluster.base_url}{path}"
    assert httpx.post(url, content=HUGE * 3, **PLAINLY).status_code == 413
    # A body that does not come, and one that is longer than was said.
    asyncio.run(_half_a_body(cluster.base_url, path))


async def _half_a_body(base_url: str, path: str) -> None:
    target = httpx.URL(base_url)
    reader, writer = await asyncio.open_connection(target.host, target.port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n" + '{"model"'
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    del reader


def test_nobody_else_was_hit(cluster: HostedCluster) -> None:
    """The last one: the same answer as without a cache, and nothing is held."""
    assert not cluster.deaths
    api = Api(cluster.base_url, cluster.admin_key, DUMMY_MODEL)
    cold = api.complete(PROMPT, cache="off").tokens
    assert api.complete(PROMPT).tokens == cold
    assert api.complete(PROMPT).tokens == cold
    asyncio.run(Load(cluster).all_is_given_back())
    assert "Traceback" not in cluster.logs()
