"""A cluster under mixed load and random faults for a while, and what it held before and after."""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from scripts.launcher.cluster import LocalCluster
from scripts.launcher.errors import LaunchError
from scripts.launcher.options import ClusterOptions
from scripts.launcher.readiness import ask_conductor
from scripts.soak.asking import Question, Where, cold_questions
from scripts.soak.breaking import Done, break_on
from scripts.soak.footprint import Footprint, footprints, grown, left_over
from scripts.soak.traffic import Habits, Seen, Traffic
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

MODEL = "dummy:tiny"
KEYS = {"red": "red-key-0001", "green": "green-key-0002", "blue": "blue-key-0003"}
LENGTHS = (40, 200, 500, 900, 1_400, 1_950)
SESSIONS = 4
MAX_TOKENS = 32
NUM_USERS = 20
WARM_UP_S = 10.0
IDLE_TIMEOUT_S = 60.0
LOOK_S = 0.5
RENEWED_S = 20.0
"""After so long the users' salts are new ones: nothing that was cached can be found any more."""


@dataclass(frozen=True, slots=True)
class SoakOptions:
    minutes: float
    seed: int
    mean_wait_s: float
    """Between two faults."""
    interval_s: float
    """Between two samples."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What all processes of the cluster held together, and what users had seen by then."""

    at_s: float
    answers: int
    left: int
    errors: int
    wrong: int
    faults: int
    memory_mb: float
    descriptors: int
    threads: int
    slots_taken: int
    """Of both nodes: written, private or leased."""
    slots_sealed: int


@dataclass(slots=True)
class Report:
    options: SoakOptions
    samples: list[Sample] = field(default_factory=list)
    faults: list[Done] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)
    left: list[str] = field(default_factory=list)
    """What was held at the end although nobody asked any more, or more than at the start."""
    before: dict[str, Footprint] = field(default_factory=dict)
    after: dict[str, Footprint] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        counts = self.seen.counts
        bad = counts["wrong"] + counts["hang"] + self.seen.num_errors
        return not bad and not self.left and bool(counts["right"])

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "options": asdict(self.options),
            "counts": dict(self.seen.counts),
            "errors": self.seen.errors,
            "max_gap_s": self.seen.max_gap_s,
            "left": self.left,
            "samples": [asdict(sample) for sample in self.samples],
            "faults": [asdict(one) for one in self.faults],
            "before": {name: asdict(one) for name, one in self.before.items()},
            "after": {name: asdict(one) for name, one in self.after.items()},
        }


def cluster_options() -> ClusterOptions:
    """Two of everything; one decode instance has room for all users."""
    tenants = {name: {"keys": [key]} for name, key in KEYS.items()}
    return ClusterOptions(
        model=MODEL,
        gateways=2,
        conductors=2,
        cache_indexes=2,
        pool_bytes=64 << 20,
        decode_tokens=80_000,
        threads=1,
        drain_timeout_s=3.0,
        log_level="WARNING",
        extra_env={
            "gateway": {"MOONPOOL_API_KEYS": json.dumps(tenants)},
            "decode": {"MOONPOOL_MAX_BATCH": str(2 * NUM_USERS)},
        },
    )


class Soak:
    """One run on a cluster that is ready."""

    def __init__(self, cluster: LocalCluster, options: SoakOptions) -> None:
        self._cluster = cluster
        self.report = Report(options)
        self._start_s = monotonic_s()

    async def run(self, on_sample: Callable[[Sample], None]) -> Report:
        report, options = self.report, self.report.options
        questions = await self._questions(random.Random(options.seed))
        await self._load(questions, WARM_UP_S, is_broken=False)
        report.left = await self._idle()
        report.before = self._footprints()
        if report.left:
            return report
        self._start_s = monotonic_s()
        async with asyncio.TaskGroup() as group:
            over = asyncio.Event()
            group.create_task(self._sample_on(over, on_sample))
            try:
                await self._load(questions, options.minutes * 60, is_broken=True)
            finally:
                over.set()
        await self._cluster.wait_ready()
        report.left = await self._idle()
        report.after = self._footprints()
        return report

    async def _questions(self, rng: random.Random) -> list[Question]:
        """Of several sessions, each turn as long as the one before with more after it."""
        found: list[Question] = []
        async with httpx.AsyncClient(trust_env=False) as http:
            for _ in range(SESSIONS):
                where = await self._wheres(http)
                found += await cold_questions(http, where[0], rng, list(LENGTHS), MAX_TOKENS)
        return found

    async def _wheres(self, http: httpx.AsyncClient) -> list[Where]:
        """Every gateway as every tenant."""
        keys = list(KEYS.values())
        url = f"{self._cluster.base_url}/v1/models"
        headers = {"authorization": f"Bearer {keys[0]}"}
        models = (await http.get(url, headers=headers)).raise_for_status().json()["data"]
        return [
            Where(base_url, models[0]["id"], key)
            for key in keys
            for base_url in self._cluster.base_urls
        ]

    async def _load(self, questions: list[Question], seconds: float, *, is_broken: bool) -> None:
        report, options = self.report, self.report.options

        def fields(rng: random.Random) -> dict[str, Any]:
            epoch = int((monotonic_s() - self._start_s) / RENEWED_S)
            salt = f"salt-{epoch}-{rng.randrange(3)}"
            return rng.choice([{}, {"cache_salt": salt}, {"cache_salt": salt}, {"cache": "off"}])

        async with httpx.AsyncClient(trust_env=False) as http:
            wheres = await self._wheres(http)
        habits = Habits(fields, leave_share=0.15, fresh_share=0.3)
        traffic = Traffic(wheres, questions, NUM_USERS, habits, options.seed)
        if is_broken:
            report.seen = traffic.seen
        rng, over = random.Random(options.seed), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            users = group.create_task(traffic.run(over))
            if is_broken:
                group.create_task(
                    break_on(self._cluster, rng, options.mean_wait_s, over, report.faults)
                )
            await asyncio.wait({users}, timeout=seconds)
            over.set()

    # --- what is held ----------------------------------------------------------------------------
    async def _sample_on(self, over: asyncio.Event, on_sample: Callable[[Sample], None]) -> None:
        while not over.is_set():
            try:
                async with asyncio.timeout(self.report.options.interval_s):
                    await over.wait()
            except TimeoutError:
                sample = await self._sample()
                if sample is not None:
                    self.report.samples.append(sample)
                    on_sample(sample)

    async def _sample(self) -> Sample | None:
        """None when no conductor answers just now or a process is not there."""
        try:
            state = await ask_conductor(self._cluster.bus)
            held = self._footprints().values()
        except LaunchError:
            return None
        if state is None:
            return None
        seen, nodes = self.report.seen, state.nodes
        return Sample(
            at_s=round(monotonic_s() - self._start_s, 1),
            answers=seen.counts["right"],
            left=seen.counts["left"],
            errors=seen.num_errors + seen.counts["hang"],
            wrong=seen.counts["wrong"],
            faults=len(self.report.faults),
            memory_mb=round(sum(one.memory_bytes for one in held) / 1e6, 1),
            descriptors=sum(one.descriptors for one in held),
            threads=sum(one.threads for one in held),
            slots_taken=sum(n.slots_writing + n.slots_private + n.slots_leased for n in nodes),
            slots_sealed=sum(node.slots_sealed for node in nodes),
        )

    def _footprints(self) -> dict[str, Footprint]:
        return footprints(self._cluster, self._cluster.names.all)

    async def _idle(self) -> list[str]:
        """What is still held after a while without a question; empty when all is given back."""
        names = self._cluster.names
        until_s = monotonic_s() + IDLE_TIMEOUT_S
        while True:
            try:
                left = await left_over(self._cluster.bus, (*names.prefills, *names.decodes))
                if self.report.before:
                    left += grown(self.report.before, self._footprints())
            except (ServiceError, LaunchError) as error:
                left = [str(error)]
            if not left or monotonic_s() > until_s:
                return left
            await asyncio.sleep(LOOK_S)
