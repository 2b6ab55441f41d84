"""A cluster in bfloat16 and mode `fast`: it answers, a hit is a cold run, others cannot join it."""

import random
import tempfile
from pathlib import Path

import pytest

from tests.conftest import StartCluster
from tests.support.api import Api, on_nodes
from tests.support.cluster import DUMMY_MODEL
from tests.support.deadline import wait_until
from tests.support.processes import ServiceProcess, nats_variables

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
GRID = 512


@pytest.mark.slow
def test_a_bf16_cluster_serves_hits_of_every_kind_and_lets_no_other_format_join(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = start_cluster(dtype="bfloat16", mode="fast")
    api = Api(cluster.base_url, cluster.admin_key, DUMMY_MODEL)
    prompt = [random.Random(1).randrange(3, 500) for _ in range(2 * GRID + 40)]
    cold = api.complete(prompt, cache="off", placement=on_nodes(1, 1))
    first = api.complete(prompt, placement=on_nodes(1, 1))
    local = api.complete(prompt, placement=on_nodes(1, 1))
    # By price it may be computed anew: that takes so small a model milliseconds, too.
    remote = api.complete(prompt, placement=on_nodes(2, 1), policy="global_cache_aware")
    across = api.complete(prompt, placement=on_nodes(1, 2))
    assert (local.cached_tokens, local.cached_from) == (2 * GRID, "local")
    assert (remote.cached_tokens, remote.cached_from) == (2 * GRID, "remote")
    assert cold.tokens == first.tokens == local.tokens == remote.tokens == across.tokens
    assert len(cold.tokens) == 16

    shared_dir = cluster.cluster.folder.shared_dir
    common = {
        "nats_url": cluster.nats_url,
        **nats_variables(cluster.cluster.nats_access),
        "shared_dir": shared_dir,
        "drain_timeout_s": 1,
    }
    # On a pool of the cluster its root is compared, on a pool of its own the index knows the model.
    for other, node, told in (
        ({"dtype": "float32", "mode": "fast"}, "node-1", "block_tokens: the pool has 512"),
        ({"dtype": "bfloat16", "mode": "exact"}, "node-1", "root: the pool holds"),
        ({"dtype": "float32", "mode": "exact"}, "other", "dtype: 'float32' != 'bfloat16'"),
    ):
        log = Path(tempfile.mkdtemp(dir=tmp_path)) / "log"
        with (
            ServiceProcess(
                "transfer",
                log.with_suffix(".node"),
                instance_id="other",
                pool_bytes=8 << 20,
                **common,
            ),
            ServiceProcess(
                "prefill", log, instance_id="p9", model=DUMMY_MODEL, node=node, **other, **common
            ) as stranger,
        ):
            wait_until(lambda: "cannot go on" in stranger.log(), timeout_s=40, what="it ends")
            assert told in stranger.log()
            assert stranger.end() == 1
    assert api.complete(prompt, placement=on_nodes(1, 1)).tokens == cold.tokens
