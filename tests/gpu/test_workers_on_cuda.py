"""Prefill and decode processes on a CUDA device, from HTTP to the last token."""

import random
from collections.abc import Iterator

import pytest

from tests.support.api import Api, on_nodes
from tests.support.cluster import DUMMY_MODEL, HostedCluster, dummy_options

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(300)]
ON_CUDA = {"MOONPOOL_DEVICE": "cuda", "MOONPOOL_DEVICE_TOKENS": "4096"}


@pytest.fixture(scope="module")
def api(device: str) -> Iterator[Api]:
    options = dummy_options(extra_env={"prefill": ON_CUDA, "decode": ON_CUDA})
    with HostedCluster(options) as cluster:
        yield Api(cluster.base_url, cluster.admin_key, DUMMY_MODEL)


def test_hits_and_hand_overs_give_the_tokens_of_a_cold_run(api: Api) -> None:
    prompt = [random.Random(1).randrange(512) for _ in range(700)]
    cold = api.complete(prompt, cache="off", placement=on_nodes(1, 1))
    first = api.complete(prompt, placement=on_nodes(1, 1))
    local = api.complete(prompt, placement=on_nodes(1, 1))
    remote = api.complete(prompt, placement=on_nodes(2, 2))
    across = api.complete(prompt, placement=on_nodes(1, 2))
    assert [one.cached_tokens for one in (cold, first, local, remote)] == [0, 0, 512, 512]
    assert first.tokens == local.tokens == remote.tokens == across.tokens == cold.tokens
