"""What `moonpool` asks of a candidate, said plainly: one instance at a time, nothing left out.

Slow and straightforward, to hold the columns against. Of nodes that are equally busy it takes the
one named first; tests that compare holders make no two of them equally busy.
"""

from dataclasses import dataclass

from shared.scheduling.cluster_view import Seen
from shared.scheduling.fetching import MAX_DEPTHS
from shared.scheduling.pairing import handoff_s
from shared.scheduling.queue_discipline import NUM_SIZES, SIZE_EDGES_S, size_class
from shared.scheduling.situation import Situation
from shared.scheduling.vocabulary import InstanceView, NodeMatch


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve the prompt at one instance."""

    cached_tokens: int
    queue_s: float
    load_s: float
    compute_s: float
    delay_s: float
    holders: tuple[str, ...] = ()

    @property
    def cost_s(self) -> float:
        return max(self.queue_s, self.load_s) + self.compute_s + self.delay_s


def reference_ways(situation: Situation) -> dict[str, tuple[Way, float]]:
    """By instance id: the cheapest way, and what it costs with the way to decode."""
    found = {}
    for row in situation.rows.tolist():
        view = situation.table.view(row)
        seen = situation.view.find("prefill", view.key)
        assert seen is not None
        best = _cheapest(situation, seen)
        found[view.id] = best, best.cost_s + _pair_s(situation, view, best.compute_s)
    return found


def _cheapest(situation: Situation, seen: Seen) -> Way:
    request, view = situation.request, seen.view
    match = situation.matches.get((view.node, view.node_incarnation))
    held = 0 if match is None else min(match.num_blocks, request.num_blocks)
    disk_blocks = 0 if match is None else min(match.disk_blocks, held)
    disk_s = disk_blocks * view.block_bytes / situation.cost.disk_bytes_per_s
    at_hand = view.usable_tokens(held, request.num_tokens)
    best = _way(situation, seen, at_hand, disk_s)
    for depth, holders in _holders_by_depth(situation):
        reach = view.usable_tokens(depth, request.num_tokens)
        best = _fetched(situation, seen, holders, best, at_hand, reach, disk_s)
        # What the queue hides, by the queue that it has with the best so far.
        hidden = _hidden_tokens(situation, view, holders, best.queue_s)
        upto = min(at_hand + hidden, reach)
        best = _fetched(situation, seen, holders, best, at_hand, upto, disk_s)
        if _sent_first(situation, holders) == 0 and len(holders) == situation.max_sources:
            break
    for one in request.expected:
        if one.instance == view.key and request.use_cache:
            tokens = view.usable_tokens(min(one.num_blocks, request.num_blocks), request.num_tokens)
            waiting = _way(situation, seen, tokens, disk_s, no_sooner_s=one.eta_s)
            if tokens > best.cached_tokens:
                best = min(best, waiting, key=lambda way: way.cost_s)
    return best


def _fetched(
    situation: Situation,
    seen: Seen,
    holders: tuple[NodeMatch, ...],
    best: Way,
    at_hand: int,
    upto: int,
    disk_s: float,
) -> Way:
    """The best so far, or to fetch all that misses up to there."""
    if upto <= at_hand:
        return best
    load_s = max(_link_s(situation, seen.view, holders, upto - at_hand), disk_s)
    names = tuple(holder.node for holder in holders)
    return min(best, _way(situation, seen, upto, load_s, names), key=lambda way: way.cost_s)


def _way(
    situation: Situation,
    seen: Seen,
    cached_tokens: int,
    load_s: float,
    holders: tuple[str, ...] = (),
    no_sooner_s: float = 0.0,
) -> Way:
    compute_s = situation.cost.prefill_s(situation.request.num_tokens, cached_tokens)
    queue_s, delay_s = _wait_and_delay_s(seen, compute_s, situation.now_s)
    return Way(
        cached_tokens, max(queue_s, no_sooner_s), load_s, compute_s, delay_s, holders=holders
    )


def _wait_and_delay_s(seen: Seen, compute_s: float, now_s: float) -> tuple[float, float]:
    view, promised = seen.view, [promise.compute_s for promise in seen.promises.values()]
    if view.discipline == "fifo":
        started_s = seen.seen_s + view.expected_start_s - now_s
        return max(started_s, 0.0) + sum(promised), 0.0
    work_s, prompts = list(view.work_by_size_s), list(view.prompts_by_size)
    for one_s in promised:
        work_s[size_class(one_s)] += one_s
        prompts[size_class(one_s)] += 1
    own = size_class(compute_s)
    edges_s = (0.0, *SIZE_EDGES_S, 2 * SIZE_EDGES_S[-1])
    inside = min((compute_s - edges_s[own]) / (edges_s[own + 1] - edges_s[own]), 1.0)
    smaller = [1.0] * own + [inside] + [0.0] * (NUM_SIZES - own - 1)
    ahead_s = sum(share * one for share, one in zip(smaller, work_s, strict=True))
    overtaken = sum((1 - share) * one for share, one in zip(smaller, prompts, strict=True))
    return max(ahead_s - (now_s - seen.seen_s), 0.0), compute_s * overtaken


# --- the way from other nodes ---------------------------------------------------------------------
def _backlog(situation: Situation, node: tuple[str, str]) -> float:
    speed = situation.cost.bytes_per_s
    return situation.view.nodes.backlog_bytes(node, situation.now_s, speed)


def _sent_first(situation: Situation, holders: tuple[NodeMatch, ...]) -> float:
    return sum(_backlog(situation, (holder.node, holder.incarnation)) for holder in holders)


def _holders_by_depth(situation: Situation) -> list[tuple[int, tuple[NodeMatch, ...]]]:
    matches = situation.matches
    depths = sorted({match.num_blocks for match in matches.values()}, reverse=True)[:MAX_DEPTHS]
    least_busy = sorted(matches, key=lambda node: (_backlog(situation, node), node))
    found = []
    for depth in depths:
        able = [matches[node] for node in least_busy if matches[node].num_blocks >= depth]
        found.append((depth, tuple(able[: situation.max_sources])))
    return found


def _starts_s(situation: Situation, view: InstanceView, holders: tuple[NodeMatch, ...]) -> float:
    disk_blocks = max(holder.disk_blocks for holder in holders)
    disk_s = disk_blocks * view.block_bytes / situation.cost.disk_bytes_per_s
    return situation.cost.profile.transfer_base_s + disk_s


def _link_s(
    situation: Situation, view: InstanceView, holders: tuple[NodeMatch, ...], num_tokens: int
) -> float:
    num_bytes = num_tokens * view.block_bytes / view.block_tokens
    sending = (num_bytes + _sent_first(situation, holders)) / len(holders)
    receiving = num_bytes + _backlog(situation, (view.node, view.node_incarnation))
    moving_s = max(sending, receiving) / situation.cost.bytes_per_s
    return _starts_s(situation, view, holders) + moving_s


def _hidden_tokens(
    situation: Situation, view: InstanceView, holders: tuple[NodeMatch, ...], queue_s: float
) -> int:
    """Whole grid chunks that arrive while it queues."""
    moving_s = max(queue_s - _starts_s(situation, view, holders), 0.0)
    room = moving_s * situation.cost.bytes_per_s
    sent = room * len(holders) - _sent_first(situation, holders)
    received = room - _backlog(situation, (view.node, view.node_incarnation))
    tokens = max(min(sent, received), 0.0) / (view.block_bytes / view.block_tokens)
    return int(tokens) // view.grid_tokens * view.grid_tokens


# --- decode --------------------------------------------------------------------------------------
def _pair_s(situation: Situation, view: InstanceView, compute_s: float) -> float:
    seen = {role: list(situation.view.of_role(role)) for role in ("prefill", "decode")}
    nodes = {(one.view.node, one.view.node_incarnation) for one in seen["decode"]}
    beside = [
        (situation.table.view(row).node, situation.table.view(row).node_incarnation) in nodes
        for row in situation.rows.tolist()
    ]
    cost_s = 0.0
    if any(beside) and not all(beside) and (view.node, view.node_incarnation) not in nodes:
        cost_s += handoff_s(situation.cost, view, situation.request.num_tokens, compute_s)
    for one in seen["decode"]:
        if one.view.id == view.id:
            waiting = one.view.running + one.view.queued_requests + len(one.promises)
            cost_s += compute_s * waiting
    return cost_s
