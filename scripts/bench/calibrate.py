"""Measures what work costs on a running cluster, as its own bills have it: prefill, decode, link.

One request after the other on an idle cluster; decode also in batches. Writes nothing.
"""

import asyncio
import itertools
import os
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scripts.replay.plan import PlannedRequest
from scripts.replay.player import Played, Player
from shared.runtime.clock import monotonic_s
from shared.scheduling.cost_model import CostProfile, PrefillSample, fit_prefill

BATCHES = (1, 2, 4)
DECODED_TOKENS = 24
DISK_BYTES = 64 << 20
REPEATS = 3


class CalibrationError(Exception):
    """The cluster gave no usable answer; says which."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is known of the cluster beforehand."""

    base_url: str
    model: str
    admin_key: str
    context_tokens: int
    block_bytes: int
    block_tokens: int
    decode_capacity_tokens: int
    prefills: tuple[str, ...]
    decode: str


@dataclass(frozen=True, slots=True)
class Measured:
    costs: CostProfile
    num_prefills: int
    has_link: bool


async def calibrate(cluster: Cluster, on_step: Callable[[str], None]) -> Measured:
    rng = random.Random()
    on_step("prefill")
    samples, request_s = await _prefill_samples(cluster, rng)
    prefill = fit_prefill(samples, CostProfile().prefill)
    on_step("decode")
    step_s, sequence_s, context_s = await _decode_costs(cluster, rng)
    on_step("link")
    link = await _link(cluster, rng)
    on_step("disk")
    disk = await asyncio.to_thread(disk_bytes_per_s, Path(os.environ.get("TMPDIR", "/tmp")))
    known = CostProfile()
    costs = CostProfile(
        prefill=prefill,
        decode_step_s=step_s,
        decode_sequence_s=sequence_s,
        decode_context_s=context_s,
        transfer_bytes_per_s=link[0] if link else known.transfer_bytes_per_s,
        transfer_base_s=link[1] if link else known.transfer_base_s,
        disk_bytes_per_s=disk,
        request_s=request_s,
    )
    return Measured(costs, len(samples), link is not None)


async def _prefill_samples(
    cluster: Cluster, rng: random.Random
) -> tuple[list[PrefillSample], float]:
    """Cold prompts of several lengths, and again with a part of each cached; and what else a TTFT
    takes on the idle cluster, in the median."""
    longest = min(cluster.context_tokens - 16, 4_096)
    lengths = sorted({max(16, longest * part // 8) for part in (1, 2, 4, 6, 8)})
    played = []
    for _ in range(REPEATS):
        played += [await _one(cluster, rng.getrandbits(60), length, 1) for length in lengths]
        chain = rng.getrandbits(60)
        # Each finds the one before it.
        played += [await _one(cluster, chain, length, 1) for length in lengths]
    overheads_s = [one.bill["bill"]["real"]["overhead_s"] for one in played]
    return [_sample(one) for one in played], statistics.median(overheads_s)


def _sample(played: Played) -> PrefillSample:
    bill = played.bill
    real = bill["bill"]["real"]
    return PrefillSample(played.planned.num_tokens, bill["cached_tokens"], real["compute_s"])


async def _decode_costs(cluster: Cluster, rng: random.Random) -> tuple[float, float, float]:
    """Least squares over (1, batch, context) of the median step of each batch."""
    rows, seconds = [], []
    short, long = 32, min(cluster.context_tokens // 2, 1_024)
    for batch, length in itertools.product(BATCHES, (short, long)):
        room = batch * (length + DECODED_TOKENS)
        if room > cluster.decode_capacity_tokens:
            continue
        played = await asyncio.gather(
            *(_one(cluster, rng.getrandbits(60), length, DECODED_TOKENS, cluster.decode)
              for _ in range(batch))
        )  # fmt: skip
        # All of them are in the batch only while none has ended and all have begun.
        began_s = max(one.token_times_s[1] for one in played)
        ended_s = min(one.token_times_s[-1] for one in played)
        gaps = [
            late - early
            for one in played
            for early, late in itertools.pairwise(one.token_times_s)
            if early >= began_s and late <= ended_s
        ]
        if gaps:
            rows.append([1.0, float(batch), batch * (length + DECODED_TOKENS / 2) / 1_024])
            seconds.append(statistics.median(gaps))
    if not rows:
        raise CalibrationError("no batch of answers overlapped long enough to measure a step")
    found, *_ = np.linalg.lstsq(np.array(rows), np.array(seconds), rcond=None)
    step_s = max(float(found[0]), min(seconds) * 0.1)
    return step_s, max(float(found[1]), 0.0), max(float(found[2]), 0.0)


async def _link(cluster: Cluster, rng: random.Random) -> tuple[float, float] | None:
    """(bytes a second, fixed seconds) of fetches from another node; None with one node only."""
    if len(cluster.prefills) < 2 or not cluster.admin_key:
        return None
    here, there = cluster.prefills[:2]
    longest = min(cluster.context_tokens - 16, 4_096)
    sizes, seconds = [], []
    for part in (4, 6, 8, 8):
        chain, length = rng.getrandbits(60), longest * part // 8
        await _one(cluster, chain, length, 1, prefill=here)
        fetched = (await _one(cluster, chain, length, 1, prefill=there)).bill
        if fetched["fetched_bytes"] and fetched["bill"]["real"]["load_s"] > 0:
            sizes.append(float(fetched["fetched_bytes"]))
            seconds.append(float(fetched["bill"]["real"]["load_s"]))
    if len(sizes) < 2:
        return None
    slope, base_s = np.polyfit(np.array(sizes), np.array(seconds), 1)
    if slope <= 0 or base_s < 0:  # too quick to tell apart: all of it is bandwidth
        return sum(sizes) / sum(seconds), 0.0
    return 1.0 / float(slope), float(base_s)


async def _one(
    cluster: Cluster,
    chain: int,
    num_tokens: int,
    output_tokens: int,
    decode: str | None = None,
    prefill: str | None = None,
) -> Played:
    planned = PlannedRequest(
        0.0, num_tokens, output_tokens, tuple(range(-(-num_tokens // 64))), 64, str(chain)
    )
    placement = {}
    if prefill is not None:
        placement["prefill"] = prefill
    if decode is not None and cluster.admin_key:
        placement["decode"] = decode
    player = Player(cluster.base_url, cluster.model, cluster.admin_key, placement=placement or None)
    (played,) = (await player.play([planned])).played
    if not played.is_served or "bill" not in played.bill:
        raise CalibrationError(
            f"a prompt of {num_tokens} tokens: {played.error or 'no bill in the answer'}"
        )
    return played


def disk_bytes_per_s(folder: Path) -> float:
    """Sequential read of a file that is not in the page cache (as far as the system obeys)."""
    path = folder / f"moonpool-calibrate-{os.getpid()}"
    try:
        with path.open("wb") as file:
            file.write(os.urandom(1 << 20) * (DISK_BYTES >> 20))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started_s = monotonic_s()
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
        return DISK_BYTES / max(monotonic_s() - started_s, 1e-6)
    finally:
        path.unlink(missing_ok=True)


def hardware_of(measured: Measured, cluster: Cluster, source: str) -> dict[str, Any]:
    """As `moonpool simulate --hardware` reads it."""
    costs = measured.costs
    return {
        "name": cluster.model,
        "source": source,
        "prefill_base_s": costs.prefill.base_s,
        "prefill_linear_s": costs.prefill.linear_s,
        "prefill_quadratic_s": costs.prefill.quadratic_s,
        "decode_step_s": costs.decode_step_s,
        "decode_sequence_s": costs.decode_sequence_s,
        "decode_context_s": costs.decode_context_s,
        "kv_bytes_per_token": max(1, cluster.block_bytes // max(cluster.block_tokens, 1)),
        "decode_capacity_tokens": cluster.decode_capacity_tokens,
        "link_bytes_per_s": costs.transfer_bytes_per_s,
        "link_base_s": costs.transfer_base_s,
        "host_to_device_bytes_per_s": 1e12,
        "disk_bytes_per_s": costs.disk_bytes_per_s,
        "request_s": costs.request_s,
    }


def profile_of(measured: Measured) -> dict[str, Any]:
    """As MOONPOOL_PROFILE reads it."""
    costs = measured.costs
    prefill = costs.prefill
    return {
        "prefill": {
            "base_s": prefill.base_s,
            "linear_s": max(prefill.linear_s, 1e-9),
            "quadratic_s": prefill.quadratic_s,
        },
        "decode_step_s": costs.decode_step_s,
        "decode_sequence_s": costs.decode_sequence_s,
        "decode_context_s": costs.decode_context_s,
        "transfer_bytes_per_s": costs.transfer_bytes_per_s,
        "transfer_base_s": costs.transfer_base_s,
        "disk_bytes_per_s": costs.disk_bytes_per_s,
        "request_s": costs.request_s,
    }
