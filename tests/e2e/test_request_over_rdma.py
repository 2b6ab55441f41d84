"""Requests whose KV moves between two nodes over the rdma transport, and their bills say so.

Over UCX's tcp on any machine, over RDMA itself where there is a device.
"""

import random
from pathlib import Path

import pytest

from tests.support.one_process import one_process_cluster
from tests.support.rdma_lanes import skip_without

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
LANES = ["tcp", pytest.param("rc", marks=pytest.mark.rdma)]
NUM_TOKENS = 600
"""Two chunks of the grid and a part of a third."""


@pytest.mark.slow
@pytest.mark.parametrize("lane", LANES)
async def test_kv_moves_over_rdma_and_the_bill_names_it(
    lane: str, nats_url: str, redis_url: str, tmp_path: Path
) -> None:
    options = {"MOONPOOL_UCX_OPTIONS": skip_without(lane), "MOONPOOL_PEER_TIMEOUT_S": "10"}
    prompt = [random.Random(1).randrange(100, 200) for _ in range(NUM_TOKENS)]
    async with one_process_cluster(nats_url, redis_url, tmp_path, "rdma", options) as cluster:
        cold = await cluster.ask(prompt, prefill="one", decode="one", max_tokens=4)
        assert cold.served["transport"] == "none"
        across = await cluster.ask(prompt, prefill="two", decode="one", max_tokens=4)
        assert across.tokens == cold.tokens
        assert across.cached_from == "remote"
        assert across.served["fetched_bytes"] > 0
        assert across.served["streamed_bytes"] > 0
        assert across.served["transport"] == "rdma"
