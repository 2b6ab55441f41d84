"""What no placement under FIFO queues is expected to beat: everything cached once is at hand.

Join the shortest work, first come first served, one infinite cache, transfers that cost nothing.
"""

from collections.abc import Sequence

from shared.simulator.hardware import Hardware
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest


def fifo_bound_ttfts_s(
    requests: Sequence[TraceRequest], num_prefills: int, hardware: Hardware
) -> list[float]:
    free_s = [0.0] * num_prefills
    seen: set[int] = set()
    ttfts_s = []
    for request in requests:
        blocks = request.blocks("served")
        hits = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
        seen.update(blocks)
        last_chunk = (request.num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        cached = min(hits * BLOCK_TOKENS, last_chunk)
        chosen = min(range(num_prefills), key=free_s.__getitem__)
        start_s = max(free_s[chosen], request.arrival_s)
        free_s[chosen] = start_s + hardware.prefill_s(request.num_tokens, cached)
        ttfts_s.append(free_s[chosen] - request.arrival_s)
    return ttfts_s
