"""A prompt that left DRAM is answered from the SSD, also after the transfer started anew; a node
that leaves hands its KV to another one."""

import random
from pathlib import Path

import httpx
import pytest

from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import StateReply
from shared.messages.reports import NodeReport
from tests.conftest import StartCluster
from tests.support.api import Api, on_nodes
from tests.support.cluster import HostedCluster
from tests.support.deadline import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
GRID = 256


def api_of(cluster: HostedCluster) -> Api:
    models = httpx.get(f"{cluster.base_url}/v1/models", timeout=5, trust_env=False).json()
    return Api(cluster.base_url, cluster.admin_key, models["data"][0]["id"])


def prompt_of(seed: int, tokens: int) -> list[int]:
    return [random.Random(seed).randrange(3, 500) for _ in range(tokens)]


def report_of(cluster: HostedCluster, node: str) -> NodeReport | None:
    state = cluster.call(
        cluster.cluster.bus.request(subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=5)
    )
    return next((report for report in state.nodes if report.id == node), None)


def settings(tmp_path: Path, **more: str) -> dict[str, dict[str, str]]:
    ssd = {"MOONPOOL_SSD_DIR": str(tmp_path / "ssd"), "MOONPOOL_SSD_BYTES": str(256 << 20)}
    return {"transfer": ssd | more}


def test_an_evicted_prompt_is_a_hit_from_the_ssd_after_a_restart(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = start_cluster(nodes=1, extra_env=settings(tmp_path))
    cluster.wait_ready()
    api = api_of(cluster)
    prompt = prompt_of(1, 4 * GRID + 20)
    cold = api.complete(prompt, cache="off")
    for _ in range(2):
        api.complete(prompt)
    wait_until(
        lambda: (report := report_of(cluster, "node-1")) and report.ssd_blocks >= 4,
        timeout_s=20,
        what="the prompt is on the SSD",
    )
    cluster.restart("node-1")
    wait_until(
        lambda: (report := report_of(cluster, "node-1")) and report.ssd_blocks >= 4,
        timeout_s=30,
        what="the blocks are back",
    )
    cluster.wait_ready()
    warm = api.complete(prompt)
    assert warm.tokens == cold.tokens
    assert warm.cached_tokens == 4 * GRID
    assert warm.served["disk_tokens"] == 4 * GRID
    assert warm.served["disk_bytes"] > 0
    again = api.complete(prompt)
    assert again.cached_tokens == 4 * GRID
    assert again.served["disk_tokens"] == 0


def test_what_a_leaving_node_held_is_a_hit_at_another_one(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=2, drain_timeout_s=8.0)
    cluster.wait_ready()
    api = api_of(cluster)
    prompt = prompt_of(2, 3 * GRID + 20)
    cold = api.complete(prompt, placement=on_nodes(1, 1))
    cluster.stop("node-1")
    warm = api.complete(prompt, placement=on_nodes(2, 2))
    assert warm.tokens == cold.tokens
    assert (warm.cached_tokens, warm.cached_from) == (3 * GRID, "local")
