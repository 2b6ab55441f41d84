"""CPU time of placements among many instances, on the conductor's own decision machine.

`python -m scripts.bench.conductor` prints one JSON object: figures, bars, whether they are met.
A placement is everything the core does for one: it is asked, and both instances accept.
"""

import json
import random
import secrets
import statistics
import time
from dataclasses import dataclass
from typing import Any

from shared.kv.ids import KEY_BYTES
from shared.scheduling.conductor_core import ConductorCore
from shared.scheduling.core_settings import CoreSettings
from shared.scheduling.cost_model import CostProfile, PrefillCoefficients
from shared.scheduling.effects import SendReserve
from shared.scheduling.events import InstanceReported, PlaceAsked, ReserveAnswered
from shared.scheduling.policies.registry import DEFAULT_POLICY, POLICIES
from shared.scheduling.queue_discipline import Waiting, make_discipline
from shared.scheduling.vocabulary import InstanceView, NodeMatch, PlacementRequest, Role

NUM_BLOCKS = 500
BLOCK_TOKENS = 256
BLOCK_BYTES = BLOCK_TOKENS * 327_680
PROFILE = CostProfile(prefill=PrefillCoefficients(0.0, 0.1172, 7.56e-4), transfer_bytes_per_s=87e9)
"""A 70B model on nodes of eight accelerators with 800 Gbps between them."""
REPORT_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Figures:
    p50_ms: float
    p99_ms: float
    decisions_per_s: float


def view_of(role: Role, number: int, rng: random.Random) -> InstanceView:
    queue = [
        Waiting(f"r{i}", rng.expovariate(1.0), -rng.random() * 5) for i in range(rng.randrange(6))
    ]
    profile = make_discipline("shortest_first").profile(queue, 0.0)
    return InstanceView(
        role=role,
        id=f"{role}-{number:04}",
        incarnation=f"{role}-{number:04}-1",
        node=f"node-{role}-{number:04}",
        node_incarnation=f"node-{role}-{number:04}-1",
        state="ready",
        model="model",
        root=b"r" * KEY_BYTES,
        kv_format={},
        block_tokens=BLOCK_TOKENS,
        grid_tokens=BLOCK_TOKENS,
        block_bytes=BLOCK_BYTES,
        context_tokens=1 << 20,
        running=rng.randrange(32),
        free_tokens=1 << 40,
        capacity_tokens=1 << 40,
        context_in_batch_tokens=rng.randrange(400_000),
        expected_start_s=sum(profile.work_s),
        discipline="shortest_first",
        work_by_size_s=profile.work_s,
        prompts_by_size=profile.prompts,
    )


def measure(num_each: int, policy: str, count: int, num_holders: int, seed: int = 1) -> Figures:
    """`count` placements; reports of all instances come in between as often as in life."""
    rng = random.Random(seed)
    core = ConductorCore(CoreSettings(policy=policy, profile=PROFILE), random.Random(seed))
    views = [view_of(role, n, rng) for role in ("prefill", "decode") for n in range(num_each)]
    for view in views:
        core.on_event(InstanceReported(view), 0.0)
    prefills = [view for view in views if view.role == "prefill"]
    took_s: list[float] = []
    chain = secrets.token_bytes(NUM_BLOCKS * KEY_BYTES)
    for place_id in range(count):
        now_s = place_id / 1_000
        # A thousand placements a second: so many reports come between two of them.
        for view in rng.sample(views, max(1, int(len(views) / REPORT_INTERVAL_S / 1_000))):
            core.on_event(InstanceReported(view), now_s)
        holders = rng.sample(prefills, min(num_holders, num_each))
        matches = tuple(
            NodeMatch(one.node, one.node_incarnation, rng.choice([1, 1, 1, 20, 200, NUM_BLOCKS]))
            for one in holders
        )
        request = PlacementRequest(
            f"r{place_id}", 0, "g", "g-1", "model", NUM_BLOCKS * BLOCK_TOKENS + 1, 300, chain
        )
        took_s.append(_place(core, PlaceAsked(place_id, request, matches), now_s))
    took_s.sort()
    return Figures(
        p50_ms=round(statistics.median(took_s) * 1e3, 3),
        p99_ms=round(took_s[int(len(took_s) * 0.99)] * 1e3, 3),
        decisions_per_s=round(count / sum(took_s)),
    )


def _place(core: ConductorCore, asked: PlaceAsked, now_s: float) -> float:
    started_s = time.process_time()
    for effect in core.on_event(asked, now_s):
        assert isinstance(effect, SendReserve), effect
        answer = ReserveAnswered(effect.place_id, effect.role, effect.instance, is_accepted=True)
        core.on_event(answer, now_s)
    return time.process_time() - started_s


def run(policies: tuple[str, ...] = (DEFAULT_POLICY,)) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for policy in policies:
        large = measure(1_000, policy, 1_000, num_holders=64)
        all_hold = measure(1_000, policy, 300, num_holders=1_000)
        small = measure(100, policy, 2_000, num_holders=64)
        figures[policy] = {
            "1000+1000 instances, 64 holders": vars_of(large),
            "1000+1000 instances, all hold": vars_of(all_hold),
            "100+100 instances": vars_of(small),
            "bars": {
                "p50 < 1 ms at 1000+1000": large.p50_ms < 1,
                "p99 < 5 ms at 1000+1000": large.p99_ms < 5,
                ">= 1000 decisions/s at 100": small.decisions_per_s >= 1_000,
            },
        }
    return {"bench": "conductor", "blocks": NUM_BLOCKS, "policies": figures}


def vars_of(figures: Figures) -> dict[str, float]:
    return {name: getattr(figures, name) for name in figures.__dataclass_fields__}


if __name__ == "__main__":
    print(json.dumps(run(tuple(POLICIES)), indent=2))
