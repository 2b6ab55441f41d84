"""One request whose KV moves between two nodes over the rdma transport, and its bill says so.

Over UCX's tcp on any machine, over RDMA itself where there is a device.
"""

import random
from collections.abc import Iterator

import pytest

from tests.support import cluster as cluster_support
from tests.support.api import Api
from tests.support.cluster import DUMMY_MODEL, HostedCluster, dummy_options
from tests.support.rdma_lanes import skip_without

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]
PATIENCE_S = 400.0
"""An emulated CPU imports torch for a minute."""
LANES = [
    pytest.param("tcp", marks=pytest.mark.slow),
    pytest.param("rc", marks=[pytest.mark.rdma, pytest.mark.slow]),
]


@pytest.fixture(params=LANES)
def cluster(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HostedCluster]:
    options = skip_without(request.param)
    monkeypatch.setattr(cluster_support, "READY_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(cluster_support, "CALL_TIMEOUT_S", PATIENCE_S)
    transfer = {"MOONPOOL_TRANSPORTS": "rdma", "MOONPOOL_UCX_OPTIONS": options}
    with HostedCluster(
        dummy_options(
            prefill_per_node=0, decode_per_node=0, both_per_node=1, extra_env={"transfer": transfer}
        )
    ) as cluster:
        yield cluster


def test_kv_moves_over_rdma_and_the_bill_names_it(cluster: HostedCluster) -> None:
    api = Api(cluster.base_url, cluster.admin_key, DUMMY_MODEL)
    prompt = [random.Random(1).randrange(100, 200) for _ in range(600)]
    first = api.complete(prompt, placement={"prefill": "both-1", "decode": "both-1"}, max_tokens=4)
    across = api.complete(prompt, placement={"prefill": "both-2", "decode": "both-1"}, max_tokens=4)
    assert across.tokens == first.tokens
    assert across.served["fetched_bytes"] > 0
    assert across.cached_from == "remote"
    assert across.served["transport"] == "rdma"
