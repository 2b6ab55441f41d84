"""One after the other, by id."""

import numpy as np

from shared.scheduling.pricing import Prices, price_local
from shared.scheduling.situation import Situation


class RoundRobin:
    """Remembers the last id, not a position: instances may come and go."""

    name = "round_robin"

    def __init__(self) -> None:
        self._last_id = ""

    def rank(self, situation: Situation) -> Prices:
        table = situation.table
        by_id = table.in_order_of_ids(situation.rows)
        after = sum(table.view(row).id <= self._last_id for row in by_id)
        turn = np.roll(by_id, -after)
        self._last_id = table.view(int(turn[0])).id
        prices = price_local(situation)
        prices.order = np.searchsorted(situation.rows, turn)
        return prices
