"""Any instance; the floor that other policies are compared with."""

import numpy as np

from shared.scheduling.pricing import Prices, price_local, random_numbers
from shared.scheduling.situation import Situation


class RandomChoice:
    name = "random"

    def rank(self, situation: Situation) -> Prices:
        prices = price_local(situation)
        prices.order = np.argsort(random_numbers(len(situation.rows), situation.rng))
        return prices
