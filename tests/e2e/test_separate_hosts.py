"""Two nodes that cannot see each other's memory, as on two hosts: KV goes over streams.

Their conductor leaves it to decode to refuse (admission `baseline`).
"""

import asyncio
import random
from collections.abc import Iterator

import httpx
import pytest

from shared.messages import subjects
from shared.messages.trace import TraceEvent
from tests.support.api import Api, on_nodes
from tests.support.cluster import DUMMY_MODEL, HostedCluster, dummy_options
from tests.support.deadline import wait_until
from tests.support.load import Load

pytestmark = pytest.mark.e2e
GRID = 256


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostedCluster]:
    """The nodes do not look for one another's memory, as if there were two hosts."""
    settings = {
        "transfer": {"MOONPOOL_TRANSPORTS": "tcp"},
        "conductor": {"MOONPOOL_ADMISSION": "baseline"},
    }
    with HostedCluster(dummy_options(extra_env=settings)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def api(hosts: HostedCluster) -> Api:
    return Api(hosts.base_url, hosts.admin_key, DUMMY_MODEL)


def prompt_of(seed: int, tokens: int) -> list[int]:
    return [random.Random(seed * 1000 + n).randrange(3, 500) for n in range(tokens)]


def test_a_remote_hit_and_a_far_decode_give_the_cold_tokens_over_tcp(api: Api) -> None:
    prompt = prompt_of(1, 3 * GRID + 9)
    cold = api.complete(prompt, cache="off", placement=on_nodes(1, 1))
    api.complete(prompt, placement=on_nodes(1, 1))
    remote = api.complete(prompt, placement=on_nodes(2, 2))
    assert (remote.cached_tokens, remote.cached_from) == (3 * GRID, "remote")
    assert remote.served["transport"] == "tcp"
    assert remote.served["fetched_bytes"] > 0
    fresh = prompt_of(2, 3 * GRID + 9)
    across = api.complete(fresh, placement=on_nodes(1, 2))
    assert across.served["transport"] == "tcp"
    # How much of it had arrived before the hand-over is up to the machine.
    assert 0 <= across.served["hidden_bytes"] <= across.served["streamed_bytes"]
    assert across.served["streamed_bytes"] > 0
    assert across.served["tail_s"] > 0
    assert across.tokens == api.complete(fresh, cache="off", placement=on_nodes(1, 1)).tokens
    assert remote.tokens == cold.tokens


def test_decode_refuses_after_the_prefill_with_429_and_all_is_given_back(
    hosts: HostedCluster, api: Api
) -> None:
    """Twelve at once over two nodes; every other one has a target that no step keeps to."""
    ended: list[TraceEvent] = []
    bus = hosts.cluster.bus
    hosts.call(bus.subscribe(subjects.trace("late-1"), TraceEvent, ended.append))

    async def ask(client: httpx.AsyncClient, number: int) -> httpx.Response:
        is_late = number % 2 == 1
        target = {"tbt_slo_ms": 1e-3} if is_late else {"tbt_slo_ms": 3_600_000}
        return await client.post(
            f"{api.base_url}/v1/completions",
            json=api.body(
                prompt_of(10 + number, 2 * GRID + 9),
                placement=on_nodes(1, 2),
                stream=is_late,
                **target,
            ),
            headers=api.headers | {"x-request-id": f"late-{number}", "x-moonpool-trace": "1"},
            timeout=60,
        )

    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(12)))

    answers = asyncio.run(ask_all())
    assert [one.status_code for one in answers] == [200, 429] * 6
    for refused in answers[1::2]:
        assert int(refused.headers["retry-after"]) >= 1
        error = refused.json()["error"]
        assert (error["code"], error["type"]) == ("overloaded", "rate_limit_error")
        assert error["targets"]["predicted_tbt_ms"] > error["targets"]["allowed_tbt_ms"] == 1e-3
        assert "TBT would be" in error["message"]
    for number in (1, 11):
        url = f"{api.base_url}/v1/bills/late-{number}"
        bill = httpx.get(url, headers=api.headers, timeout=10, trust_env=False).json()
        assert bill["wasted_prefill_s"] == bill["real"]["compute_s"] > 0
    served = answers[0].json()
    assert served["moonpool"]["wasted_prefill_s"] == 0
    cold = api.complete(prompt_of(10, 2 * GRID + 9), cache="off", placement=on_nodes(1, 1))
    assert served["choices"][0]["token_ids"] == cold.tokens
    failed = wait_until(lambda: [one for one in ended if one.event == "failed"], what="its trace")
    assert failed[0].details["wasted_prefill_s"] > 0
    asyncio.run(Load(hosts).all_is_given_back())
    assert "Traceback" not in hosts.logs()
