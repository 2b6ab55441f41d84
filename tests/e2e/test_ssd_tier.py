"""A prompt that left DRAM is answered from the SSD, also after the transfer started anew; a node
that leaves hands its KV to another one."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx
import numpy as np
import pytest

from shared.kv.block_keys import chain_keys
from shared.messages import subjects
from shared.messages.common import Empty, ErrorCode
from shared.messages.conductor import (
    ChangeReplicaReply,
    ChangeReplicaRequest,
    ModelsReply,
    StateReply,
)
from shared.messages.envelope import Message
from shared.messages.reports import NodeReport
from shared.runtime.errors import ServiceError
from shared.transport.segment import data_offset_of
from tests.conftest import StartCluster
from tests.support.api import Api, on_nodes
from tests.support.cluster import HostedCluster
from tests.support.deadline import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
GRID = 256
M = TypeVar("M", bound=Message)


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


@pytest.mark.slow
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


def flip_a_bit_in_each_slot(path: Path, first: int, slot_bytes: int, num_slots: int) -> None:
    with path.open("r+b") as file:
        for slot in range(num_slots):
            file.seek(first + slot * slot_bytes + 100)
            (byte,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 4]))


def test_damage_in_memory_and_on_disk_costs_time_and_never_a_token(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = start_cluster(nodes=1, extra_env=settings(tmp_path))
    cluster.wait_ready()
    api = api_of(cluster)
    prompt = prompt_of(3, 3 * GRID + 20)
    cold = api.complete(prompt, cache="off")
    for _ in range(2):
        api.complete(prompt)
    wait_until(
        lambda: (report := report_of(cluster, "node-1")) and report.ssd_blocks == 3,
        timeout_s=20,
        what="the prompt is on the SSD",
    )
    report = report_of(cluster, "node-1")
    assert report is not None
    (segment,) = cluster.cluster.folder.shared_dir.glob("*.seg")
    first = data_offset_of(report.slots_total)
    flip_a_bit_in_each_slot(segment, first, report.block_bytes, report.slots_total)
    from_disk = api.complete(prompt)
    assert from_disk.tokens == cold.tokens
    assert from_disk.served["disk_tokens"] == 3 * GRID
    (files,) = tmp_path.glob("ssd/node-1/*/blocks-00000.bin")
    flip_a_bit_in_each_slot(segment, first, report.block_bytes, report.slots_total)
    flip_a_bit_in_each_slot(files, 0, report.block_bytes, report.ssd_slots_total)
    computed = api.complete(prompt)
    assert computed.tokens == cold.tokens
    assert computed.cached_tokens == 0
    again = api.complete(prompt)
    assert (again.tokens, again.cached_tokens) == (cold.tokens, 3 * GRID)


def test_a_prefix_gets_as_many_replicas_as_an_operator_wants(dummy_cluster: HostedCluster) -> None:
    api = api_of(dummy_cluster)
    prompt = prompt_of(4, 2 * GRID + 20)
    cold = api.complete(prompt, placement=on_nodes(1, 1))
    models = ask(dummy_cluster, subjects.CONDUCTOR_MODELS, Empty(), ModelsReply)
    model = models.models[0]
    chain = chain_keys(model.root, np.array(prompt, dtype=np.int32), model.block_tokens)

    def change(num_replicas: int) -> ChangeReplicaReply:
        request = ChangeReplicaRequest(model=model.name, chain=chain, num_replicas=num_replicas)
        return ask(dummy_cluster, subjects.CONDUCTOR_CHANGE_REPLICA, request, ChangeReplicaReply)

    more = wait_until(
        lambda: reply if (reply := change_or_none(change, 2)) else None,
        timeout_s=10,
        what="the index knows the prompt",
    )
    assert sorted(more.nodes) == ["node-1", "node-2"]
    assert more.added == ["node-2"]
    warm = api.complete(prompt, placement=on_nodes(2, 2))
    assert (warm.tokens, warm.cached_tokens, warm.cached_from) == (cold.tokens, 2 * GRID, "local")
    fewer = wait_until(
        lambda: reply if (reply := change(1)).dropped else None, timeout_s=10, what="a copy less"
    )
    assert len(fewer.nodes) == 1
    with pytest.raises(ServiceError, match="model"):
        ask(
            dummy_cluster,
            subjects.CONDUCTOR_CHANGE_REPLICA,
            ChangeReplicaRequest(model="nobody", chain=chain, num_replicas=1),
            ChangeReplicaReply,
        )


def change_or_none(
    change: Callable[[int], ChangeReplicaReply], num_replicas: int
) -> ChangeReplicaReply | None:
    """None while no node is known to have the prefix."""
    try:
        return change(num_replicas)
    except ServiceError as error:
        if error.code != ErrorCode.KV_LOST:
            raise
        return None


def ask(cluster: HostedCluster, subject: str, request: Message, reply_type: type[M]) -> M:
    return cluster.call(cluster.cluster.bus.request(subject, request, reply_type, timeout_s=40))
