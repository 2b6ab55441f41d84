"""A baseline: the published cost formula of NVIDIA Dynamo's router, blocks instead of seconds.

Prompt blocks that wait at the instance and come with the request, less those it has, plus blocks in
its decode batch; the smallest wins. A prefill instance has no decode blocks.
"""

import numpy as np

from shared.scheduling.pricing import Prices, cheapest_first, price_local
from shared.scheduling.situation import Situation

DISK_CREDIT = 0.25
"""Of a block on disk against one in memory (which counts whole: the pool is read in place)."""


class DynamoCost:
    name = "dynamo_cost"

    def rank(self, situation: Situation) -> Prices:
        prices = price_local(situation)
        prices.cost_unit = "blocks"
        block_tokens = situation.facts.block_tokens
        active = (situation.column("queued_tokens") + situation.request.num_tokens) / block_tokens
        on_disk = situation.disk_blocks(prices.local_blocks)
        credit = prices.local_blocks - on_disk + DISK_CREDIT * on_disk
        return cheapest_first(prices, np.maximum(active - credit, 0.0))
