"""The paper's Algorithm 1: fetch the best prefix where it is worth it, take the lowest TTFT."""

from shared.scheduling.pricing import Situation, ordered, price
from shared.scheduling.vocabulary import Candidate, InstanceView, NodeMatch


class GlobalCacheAware:
    name = "global_cache_aware"

    def rank(self, situation: Situation) -> list[Candidate]:
        best = best_match(situation)
        candidates = [
            price(
                situation, instance, best if is_worth_fetching(situation, instance, best) else None
            )
            for instance in situation.prefills
        ]
        return ordered(candidates, situation.rng)


def best_match(situation: Situation) -> NodeMatch | None:
    """FindBestPrefixMatch: the node with the longest match; equals share the fetches at random."""
    matches = sorted(situation.matches.values(), key=lambda match: (-match.num_blocks, match.node))
    if not matches or not matches[0].num_blocks:
        return None
    longest = [match for match in matches if match.num_blocks == matches[0].num_blocks]
    return situation.rng.choice(longest)


def is_worth_fetching(situation: Situation, instance: InstanceView, best: NodeMatch | None) -> bool:
    """best_len / prefix_len > threshold; with nothing local the ratio is infinite."""
    if best is None or best.node == instance.node:
        return False
    num_tokens = situation.request.num_tokens
    best_len = instance.usable_tokens(best.num_blocks, num_tokens)
    prefix_len = instance.usable_tokens(situation.local_blocks(instance), num_tokens)
    if prefix_len == 0:
        return best_len > 0
    return best_len / prefix_len > situation.balancing_threshold
