"""Figures 5, 10 and 11 and the frontier: which policy, which queue, where the copies are."""

from dataclasses import replace

from scripts.charts.chart import Chart, Series, bars
from scripts.simulate import paper
from scripts.simulate.lab import TRACES, Lab, Report, Row
from shared.kv.eviction.registry import EVICTION_POLICIES
from shared.simulator.cluster import SimulatedCluster
from shared.simulator.fifo_bound import fifo_bound_ttfts_s
from shared.simulator.outcome import mean, percentile
from shared.simulator.prefix_pool import PrefixPool, key_of
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest

AGEINGS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SAMPLE_EVERY_S = 30.0
RANKS = (10, 100, 1_000, 10_000)


def fig5(lab: Lab) -> Report:
    """Mean TTFT by policy, conversation trace."""
    requests = lab.trace("conversation")
    why = "no network stack, no other load: order and ratios compare, seconds do not"
    report, ours, known = Report(), {}, {}
    for policy in ("moonpool", *paper.TTFT_BY_POLICY_S):
        outcome = lab.run(requests, policy=policy)
        figure = paper.TTFT_BY_POLICY_S.get(policy)
        report.rows.append(
            Row(policy, "mean TTFT s", outcome.mean_ttft_s, figure, why if figure else "")
        )
        for percent, name in ((25, "q1"), (50, "median"), (75, "q3")):
            quartile = paper.TTFT_QUARTILES_S.get(policy, {}).get(name)
            report.rows.append(
                Row(policy, f"{name} TTFT s", outcome.ttft_percentile_s(percent), quartile)
            )
        ours[policy] = outcome.mean_ttft_s
        if figure:
            known[policy] = figure
    report.charts.append(bars("Mean TTFT by policy", "seconds", {"ours": ours, "paper": known}))
    return report


def fig10(lab: Lab) -> Report:
    """Hit and prefill time, local and global, 10 prefill nodes, one token answered."""
    report = Report()
    why_global = "public ids are of 512 tokens, the paper ran 256"
    why_local = "routed by TTFT, which spreads and still finds most: not what the paper's did"
    why_one = "longest match, ties to the first node: one node takes all, as in the paper's hits"
    for trace in TRACES:
        requests = [replace(request, output_tokens=1) for request in lab.trace(trace)]
        for policy, hits, seconds, why in (
            ("local_cache_aware", paper.LOCAL_HIT, paper.LOCAL_PREFILL_S, why_local),
            ("global_cache_aware", paper.GLOBAL_HIT, paper.GLOBAL_PREFILL_S, why_global),
        ):
            outcome = lab.run(requests, f"{trace}, {policy}", policy=policy, num_prefills=10)
            report.rows += [
                Row(f"{trace}, {policy}", "hit", outcome.hit, hits[trace], why),
                Row(f"{trace}, {policy}", "prefill s", outcome.mean_compute_s, seconds[trace], why),
            ]
            if policy == "local_cache_aware":
                hit, prefill_s = _one_node(lab, requests)
                label = f"{trace}, longest match"
                report.rows += [
                    Row(label, "hit", hit, hits[trace], why_one),
                    Row(label, "prefill s", prefill_s, seconds[trace], why_one),
                ]
    shown: dict[str, dict[str, float]] = {"ours": {}, "paper": {}}
    for row in report.rows:
        if row.quantity == "hit" and "longest" not in row.label:
            label = row.label.replace("_cache_aware", "").replace(", ", " ")
            shown["ours"][label], shown["paper"][label] = row.ours, row.paper or 0.0
    report.charts.append(bars("Share of prompt tokens not computed", "hit", shown))
    return report


def _one_node(lab: Lab, requests: list[TraceRequest]) -> tuple[float, float]:
    """(hit, mean prefill s) where all requests go to one node's pool."""
    pool = PrefixPool(lab.base.pool_tokens // BLOCK_TOKENS, EVICTION_POLICIES["lru"]())
    hits, seconds = 0, 0.0
    for request in requests:
        found = pool.use(request.blocks("served")) * BLOCK_TOKENS
        cached = min(found, (request.num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        hits += cached
        seconds += lab.base.hardware.prefill_s(request.num_tokens, cached)
    return hits / sum(one.num_tokens for one in requests), seconds / len(requests)


def fig11(lab: Lab) -> Report:
    """Copies of hot blocks, sampled each 30 s: 8 prefill nodes, Algorithm 1."""
    report = Report()
    why = "ranked by all uses, not by those so far; blocks of 512 tokens"
    for trace in TRACES:
        requests = lab.trace(trace)
        counts: dict[int, int] = {}
        for request in requests:
            for block in request.blocks("served"):
                counts[block] = counts.get(block, 0) + 1
        ranked = sorted(counts, key=lambda block: -counts[block])
        chosen = {rank: key_of(ranked[rank - 1]) for rank in RANKS if rank <= len(ranked)}
        settings = replace(lab.base, policy="global_cache_aware", num_prefills=8)
        cluster = SimulatedCluster(settings)
        series: dict[int, list[tuple[float, float]]] = {rank: [] for rank in chosen}

        def sample(
            cluster: SimulatedCluster = cluster,
            series: dict[int, list[tuple[float, float]]] = series,
            chosen: dict[int, bytes] = chosen,  # type: ignore[assignment]
        ) -> None:
            for rank, key in chosen.items():
                copies = sum(node.pool.is_readable(key) for node in cluster.machines.nodes.values())  # type: ignore[arg-type]
                series[rank].append((cluster.loop.now_s, float(copies)))

        for number in range(1, int(requests[-1].arrival_s / SAMPLE_EVERY_S) + 1):
            cluster.loop.at(number * SAMPLE_EVERY_S, sample)
        cluster.run(requests, lab.start_run(trace, len(requests)))
        for rank, points in series.items():
            most = max((copies for _, copies in points), default=0.0)
            known = paper.MAX_COPIES[trace].get(rank)
            report.rows.append(Row(f"{trace}, rank {rank}", "most copies", most, known, why))
        made = tuple(Series(f"rank {rank}", tuple(points)) for rank, points in series.items())
        report.charts.append(Chart(f"Copies over time: {trace}", "seconds", "nodes", made))
    return report


def frontier(lab: Lab) -> Report:
    """Mean and p99 of TTFT over the ageing of shortest-first queues, beside FIFO; conversation."""
    requests = lab.trace("conversation")
    report = Report()
    for nodes in (8, 6):
        local = lab.run(requests, f"{nodes} local", policy="local_cache_aware", num_prefills=nodes)
        bound = mean(fifo_bound_ttfts_s(requests, nodes, lab.base.hardware))
        fifo = lab.run(
            requests, f"{nodes} fifo", policy="moonpool", num_prefills=nodes, discipline="fifo"
        )
        fifo_p99 = fifo.ttft_percentile_s(99)
        points = []
        report.rows += [
            Row(f"{nodes} nodes, local_cache_aware", "mean TTFT s", local.mean_ttft_s),
            Row(f"{nodes} nodes, FIFO bound", "mean TTFT s", bound),
            Row(f"{nodes} nodes, FIFO queues", "mean TTFT s", fifo.mean_ttft_s),
            Row(f"{nodes} nodes, FIFO queues", "p99 TTFT s", fifo_p99),
        ]
        for ageing in AGEINGS:
            outcome = lab.run(
                requests, f"{nodes} ageing {ageing}", policy="moonpool", num_prefills=nodes,
                discipline="shortest_first", ageing=ageing,
            )  # fmt: skip
            label = f"{nodes} nodes, ageing {ageing:g}"
            p99 = outcome.ttft_percentile_s(99)
            longest = sorted(outcome.served, key=lambda one: one.num_tokens)[-120:]
            report.rows += [
                Row(label, "mean TTFT s", outcome.mean_ttft_s),
                Row(label, "mean to local", outcome.mean_ttft_s / local.mean_ttft_s),
                Row(label, "mean to bound", outcome.mean_ttft_s / bound),
                Row(label, "p99 to FIFO", p99 / fifo_p99),
                Row(label, "longest 120, s", percentile([one.ttft_s for one in longest], 50)),
            ]
            points.append((outcome.mean_ttft_s, p99))
        report.charts.append(
            Chart(
                f"{nodes} prefill nodes: mean against p99", "mean TTFT s", "p99 TTFT s",
                (
                    Series("ageing " + ", ".join(f"{a:g}" for a in AGEINGS), tuple(points)),
                    Series("FIFO", ((fifo.mean_ttft_s, fifo_p99),)),
                ),
            )
        )  # fmt: skip
    return report
