"""One cluster of hosts with and without AVX-512: in float32 they share their KV."""

import random

import pytest

from shared.engine.cpu_isa import cpu_flags
from tests.conftest import StartCluster
from tests.support.api import Api, on_nodes
from tests.support.cluster import DUMMY_MODEL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
GRID = 256


@pytest.mark.skipif("avx512dq" not in cpu_flags(), reason="a CPU without AVX-512")
def test_a_host_with_avx2_alone_takes_what_one_with_avx512_computed(
    start_cluster: StartCluster,
) -> None:
    few = {"MOONPOOL_KERNELS": "avx2"}
    many = {"MOONPOOL_KERNELS": "avx512"}
    cluster = start_cluster(
        extra_env={"prefill-1": few, "decode-1": few, "prefill-2": many, "decode-2": many}
    )
    api = Api(cluster.base_url, cluster.admin_key, DUMMY_MODEL)
    prompt = [random.Random(2).randrange(3, 500) for _ in range(2 * GRID + 40)]
    cold = api.complete(prompt, cache="off", placement=on_nodes(1, 1))
    first = api.complete(prompt, placement=on_nodes(1, 1))
    # By price it may be computed anew: that takes so small a model milliseconds, too.
    taken = api.complete(prompt, placement=on_nodes(2, 1), policy="global_cache_aware")
    assert (taken.cached_tokens, taken.cached_from) == (2 * GRID, "remote")
    across = api.complete(prompt, placement=on_nodes(2, 1))
    assert cold.tokens == first.tokens == taken.tokens == across.tokens
    assert len(cold.tokens) == 16
