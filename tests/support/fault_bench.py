"""One cluster under load that is broken again and again; what each fault cost, and what it left."""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from scripts.soak.asking import HANG_S, Question, Where, body_of, cold_questions
from scripts.soak.footprint import Footprint, footprints, grown, left_over
from scripts.soak.traffic import Habits, Seen, Traffic
from services.gateway.namespaces import namespace_of
from shared.kv.block_keys import chain_keys, seed_of
from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import ModelInfo, ModelsReply, StateReply
from shared.messages.index import MatchReply, MatchRequest
from shared.runtime.clock import monotonic_s
from tests.support.cluster import HostedCluster
from tests.support.deadline import until
from tests.support.redis_keys import lasting_keys
from tests.support.seams import Held, Seams, Stage

NUM_USERS = 20
MAX_TOKENS = 24
LENGTHS = [200 + 90 * number for number in range(12)]
POLICIES = (None, "global_cache_aware", "round_robin")
"""Drawn for each question, so that blocks are fetched and prompts are handed over across nodes."""
FRESH_SHARE = 0.3
"""Of questions over a new connection; the others use those that are open."""
SERVED_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 30.0
MAX_SHOWN = 5
QUESTIONS_OF_A_SALT = 40
KEPT_SALTS = 3
"""Of the latest, whose blocks are looked up after a fault."""
# A process that is started anew while a fault lasts; a hold on it is over with it.
Fault = Callable[["FaultBench", Held], Awaitable[None]]


@dataclass(slots=True)
class Row:
    """One fault at one stage."""

    fault: str
    target: str
    stage: str
    answers: int = 0
    errors: int = 0
    wrong: int = 0
    hangs: int = 0
    recovery_s: float = 0.0
    """From the fault until every user has had a right answer to a question asked after it."""
    gap_s: float = 0.0
    """Longest time between two pieces of any stream."""
    first_s: float = 0.0
    """Longest time to a first token."""
    leaks: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    first_errors: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class FaultBench:
    """Made once for many faults: each must leave the cluster as it found it."""

    def __init__(self, cluster: HostedCluster, seams: Seams) -> None:
        self.cluster = cluster
        self.seams = seams
        self._number = 0
        self._salts: deque[str] = deque(maxlen=KEPT_SALTS)
        self.questions: list[Question] = []
        self._before: dict[str, Footprint] = {}
        self._keys: list[bytes] = []
        models = httpx.get(f"{cluster.base_url}/v1/models", timeout=5, trust_env=False).json()
        model = models["data"][0]["id"]
        self.wheres = [Where(url, model, cluster.admin_key) for url in cluster.base_urls]

    async def warm_up(self) -> None:
        """Right answers, and what the processes hold once they have worked."""
        rng = random.Random(5)
        async with httpx.AsyncClient(trust_env=False) as http:
            where = self.wheres[0]
            self.questions = await cold_questions(http, where, rng, LENGTHS, MAX_TOKENS)
        await self._under_load(None, None)
        await self._idle([])
        self._before = self._footprints()
        self._keys = lasting_keys(self.cluster.redis_url)

    async def row(self, fault: str, target: str, stage: Stage | None, do: Fault) -> Row:
        """Break it at that stage under load; then look at what came of it."""
        seen, recovery_s = await self._under_load(stage, do)
        row = Row(fault, target, stage or "any")
        row.answers, row.errors = seen.counts["right"], seen.num_errors
        row.wrong, row.hangs = seen.counts["wrong"], seen.counts["hang"]
        row.kinds, row.first_errors = dict(seen.counts), seen.errors[:MAX_SHOWN]
        row.recovery_s, row.gap_s, row.first_s = recovery_s, seen.max_gap_s, seen.max_first_s
        self.cluster.wait_ready()
        await self._idle(row.leaks)
        return row

    # --- load ----------------------------------------------------------------------------------
    async def _under_load(self, stage: Stage | None, do: Fault | None) -> tuple[Seen, float]:
        self._number += 1
        asked = itertools.count()

        def fields(rng: random.Random) -> dict[str, Any]:
            # Nothing is cached under a new salt: all stages are passed again and again.
            salt = f"case-{self._number}-{next(asked) // QUESTIONS_OF_A_SALT}"
            if salt not in self._salts:
                self._salts.append(salt)
            policy = rng.choice(POLICIES)
            return {"cache_salt": salt} | ({} if policy is None else {"policy": policy})

        habits = Habits(fields, fresh_share=FRESH_SHARE)
        traffic = Traffic(self.wheres, self.questions, NUM_USERS, habits, self._number)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(traffic.run(over))
            try:
                held = Held("queued", "", "prefill-1", "decode-1", "node-1")
                if stage is not None:
                    held = await self.seams.hold(stage)
                else:
                    await self._served(traffic.seen, monotonic_s())
                fault_s = monotonic_s()
                if do is not None:
                    await do(self, held)
                self.seams.release()
                await self._served(traffic.seen, fault_s)
                recovery_s = monotonic_s() - fault_s
            finally:
                self.seams.release()
                over.set()
        return traffic.seen, recovery_s

    @staticmethod
    async def _served(seen: Seen, since_s: float) -> None:
        await until(
            lambda: seen.all_are_served(since_s),
            timeout_s=SERVED_TIMEOUT_S,
            what=f"every user is served ({seen})",
        )

    async def ask_on(
        self, http: httpx.AsyncClient, node: str, prompt: tuple[int, ...], **fields: Any
    ) -> None:
        """One token after that prompt, which is computed and kept on that node."""
        where, number = self.wheres[0], node.rpartition("-")[2]
        placement = {"prefill": f"prefill-{number}", "decode": f"decode-{number}"}
        response = await http.post(
            f"{where.base_url}/v1/completions",
            json=body_of(where, prompt, 1, placement=placement, **fields),
            headers={"authorization": f"Bearer {where.key}"},
            timeout=HANG_S,
        )
        assert response.status_code == 200, response.text

    # --- what is left --------------------------------------------------------------------------
    async def _idle(self, leaks: list[str]) -> None:
        """Everything is given back in time, or it is a leak."""
        left: list[str] = []

        async def is_back() -> bool:
            nonlocal left
            left = await asyncio.to_thread(self._left)
            return not left

        try:
            await until(is_back, timeout_s=IDLE_TIMEOUT_S, what="all is given back")
        except AssertionError:
            leaks += left

    def _left(self) -> list[str]:
        names = self.cluster.cluster.names
        held = left_over(self.cluster.cluster.bus, (*names.prefills, *names.decodes))
        left = self.cluster.call(held)
        if self._before:
            left += grown(self._before, self._footprints())
            keys = lasting_keys(self.cluster.redis_url)
            left += [f"Redis has {key!r}" for key in keys if key not in self._keys]
        return left + self._stale_lookups()

    def _footprints(self) -> dict[str, Footprint]:
        return footprints(self.cluster.cluster, self.cluster.cluster.names.all)

    def _stale_lookups(self) -> list[str]:
        """No lookup of what was asked names an incarnation that is gone."""
        bus, call = self.cluster.cluster.bus, self.cluster.call
        models = call(bus.request(subjects.CONDUCTOR_MODELS, Empty(), ModelsReply, timeout_s=5))
        state = call(bus.request(subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=5))
        live = {(node.id, node.incarnation) for node in state.nodes}
        if not models.models:
            return ["a conductor knows no model yet"]
        (model,) = models.models
        stale = []
        for question, salt in itertools.product(self.questions, self._salts):
            chain = chain_of(model, question.prompt, salt)
            asked = MatchRequest(root=model.root, chain=chain)
            found = call(bus.request(subjects.INDEX_MATCH, asked, MatchReply, timeout_s=5))
            stale += [
                f"a lookup names {one.node.id}, which is gone"
                for one in found.nodes
                if (one.node.id, one.node.incarnation) not in live
            ]
        return stale


def chain_of(model: ModelInfo, prompt: tuple[int, ...], salt: str) -> bytes:
    """Keys of a prompt that is asked with that salt."""
    seed = seed_of(model.root, namespace_of("", salt))
    return chain_keys(seed, np.asarray(prompt, dtype=np.int32), model.block_tokens)


def make_bench(cluster: HostedCluster, folder: Path) -> FaultBench:
    bench = FaultBench(cluster, Seams(folder))
    asyncio.run(bench.warm_up())
    return bench
