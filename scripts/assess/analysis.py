"""What sharing would bring: hits by pool size, break-even, saved time, a verdict, reasons."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shared.kv.eviction.registry import DEFAULT_EVICTION
from shared.simulator.cluster import SimulatedCluster
from shared.simulator.hardware import Hardware
from shared.simulator.hit_rate import measure
from shared.simulator.outcome import Outcome, mean
from shared.simulator.settings import ClusterSettings
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest

Verdict = Literal["share", "share only locally", "don't"]
SIZES_TOKENS = (300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
WORTH = 0.05
"""What must be saved, of prefill time or of TTFT, to be worth the moving parts."""
PREFIXES = (512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the requests, simulated."""

    name: str
    hit: float
    prefill_s: float
    """Of all requests together."""
    mean_ttft_s: float
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Assessment:
    num_requests: int
    prompt_tokens: int
    ideal_hit: float
    hit_by_pool_tokens: dict[int, float]
    hit_by_block_tokens: dict[int, float]
    break_even_bytes_per_s: dict[int, float]
    """By prefix length: a slower link is not worth fetching over."""
    break_even_tokens: int | None
    """From this prefix on a fetch over the link is faster than to compute; None: never."""
    ways: tuple[Way, ...]
    disk_hit_gain: float
    """Tokens that ten times the memory, on disk, would serve besides, of all."""
    is_disk_faster: bool
    verdict: Verdict
    reasons: tuple[str, ...]


def assess(
    requests: Sequence[TraceRequest],
    hardware: Hardware,
    num_nodes: int,
    pool_tokens: int,
    disk_bytes_per_s: float,
    hit_by_block_tokens: dict[int, float] | None = None,
    on_run: Callable[[str], None] = lambda _name: None,
) -> Assessment:
    pools: dict[int, float] = {}
    for size in sorted({*SIZES_TOKENS, pool_tokens * num_nodes}):
        on_run(f"a pool of {size / 1e6:g} M tokens")
        pools[size] = measure(requests, DEFAULT_EVICTION, size, "served").hit
    ideal = measure(requests, "lru", 1 << 40, "served").hit
    ways = []
    for name, policy, tokens in (
        ("no cache", "least_loaded", 0),
        ("local caches", "local_cache_aware", pool_tokens),
        ("shared pool", "moonpool", pool_tokens),
    ):
        on_run(name)
        settings = ClusterSettings(
            hardware, policy=policy, num_prefills=num_nodes, num_decodes=num_nodes,
            pool_tokens=tokens, eviction=DEFAULT_EVICTION,
        )  # fmt: skip
        ways.append(_way(name, SimulatedCluster(settings).run(requests), hardware))
    on_run("disk")
    memory = pool_tokens * num_nodes
    with_disk = measure(requests, DEFAULT_EVICTION, 10 * memory, "served").hit
    typical = int(mean([float(request.num_tokens) for request in requests]))
    break_even = {p: break_even_bytes_per_s(hardware, p) for p in PREFIXES}
    is_disk_faster = disk_bytes_per_s > break_even_bytes_per_s(hardware, max(typical // 2, 512))
    verdict, reasons = judge(tuple(ways), ideal, with_disk - pools[memory], is_disk_faster)
    return Assessment(
        num_requests=len(requests),
        prompt_tokens=sum(request.num_tokens for request in requests),
        ideal_hit=ideal,
        hit_by_pool_tokens=pools,
        hit_by_block_tokens=hit_by_block_tokens or hits_by_grouping(requests),
        break_even_bytes_per_s=break_even,
        break_even_tokens=break_even_tokens(hardware),
        ways=tuple(ways),
        disk_hit_gain=with_disk - pools[memory],
        is_disk_faster=is_disk_faster,
        verdict=verdict,
        reasons=reasons,
    )


def _way(name: str, outcome: Outcome, hardware: Hardware) -> Way:
    fetched = sum(one.fetched_tokens for one in outcome.served) * hardware.kv_bytes_per_token
    return Way(
        name,
        outcome.hit,
        sum(one.compute_s for one in outcome.served),
        outcome.mean_ttft_s,
        fetched,
    )


def break_even_bytes_per_s(hardware: Hardware, prefix_tokens: int) -> float:
    """A prefix comes as fast as it would be computed."""
    seconds = hardware.prefill.seconds(prefix_tokens, 0) - hardware.prefill_base_s
    return prefix_tokens * hardware.kv_bytes_per_token / max(seconds, 1e-12)


def break_even_tokens(hardware: Hardware) -> int | None:
    for blocks in (1 << power for power in range(9)):
        prefix = blocks * BLOCK_TOKENS
        load_s = hardware.link_base_s
        load_s += prefix * hardware.kv_bytes_per_token / hardware.link_bytes_per_s
        if load_s < hardware.prefill.seconds(prefix, 0) - hardware.prefill_base_s:
            return prefix
    return None


def hits_by_grouping(requests: Sequence[TraceRequest]) -> dict[int, float]:
    """Of a trace only multiples of its block are known: two or four of them as one."""
    found = {}
    for factor in (1, 2, 4, 8):
        grouped = [
            replace(request, block_ids=request.blocks("served")[factor - 1 :: factor])
            for request in requests
        ]
        seen: set[int] = set()
        hits = 0
        for request in grouped:
            blocks = request.block_ids
            known = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
            hits += known * factor * BLOCK_TOKENS
            seen.update(blocks)
        found[factor * BLOCK_TOKENS] = hits / sum(request.num_tokens for request in requests)
    return found


def judge(
    ways: tuple[Way, ...], ideal_hit: float, disk_gain: float, is_disk_faster: bool
) -> tuple[Verdict, tuple[str, ...]]:
    none, local, shared = ways
    saved = 1 - shared.prefill_s / max(local.prefill_s, 1e-12)
    faster = 1 - shared.mean_ttft_s / max(local.mean_ttft_s, 1e-12)
    saved_locally = 1 - local.prefill_s / max(none.prefill_s, 1e-12)
    reasons = [
        f"an infinite cache would serve {ideal_hit:.0%} of the prompts' tokens",
        f"local caches save {saved_locally:.0%} of the prefill time",
        f"a shared pool saves {saved:.0%} more of it, and {faster:.0%} of the mean TTFT, "
        f"for {shared.moved_bytes / 1e9:.0f} GB moved",
    ]
    if saved >= WORTH or faster >= WORTH:
        verdict: Verdict = "share"
    elif saved_locally >= WORTH:
        verdict = "share only locally"
        reasons.append(f"less than {WORTH:.0%} more is not worth a pool over the network")
    else:
        verdict = "don't"
        reasons.append(f"less than {WORTH:.0%} of the prefill time can be saved at all")
    if disk_gain >= 0.01:
        speed = "faster" if is_disk_faster else "slower"
        reasons.append(
            f"ten times the memory on disk would serve {disk_gain:.0%} more of the tokens; "
            f"this disk is {speed} than computing them"
        )
    else:
        reasons.append("a disk behind the memory would serve hardly more")
    return verdict, tuple(reasons)
