"""Two nodes that cannot see each other's memory, as on two hosts: KV goes over streams."""

import random
from collections.abc import Iterator

import pytest

from tests.support.api import Api, on_nodes
from tests.support.cluster import DUMMY_MODEL, HostedCluster, dummy_options

pytestmark = pytest.mark.e2e
GRID = 256


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """The nodes do not look for one another's memory, as if there were two hosts."""
    options = dummy_options(extra_env={"transfer": {"MOONPOOL_TRANSPORTS": "tcp"}})
    with HostedCluster(options) as cluster:
        yield Api(cluster.base_url, cluster.admin_key, DUMMY_MODEL)


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
