"""What the conductor learns of one model from real times, and how right its predictions were."""

from dataclasses import dataclass, field

from shared.scheduling.cost_model import CostModel, PrefillSample
from shared.scheduling.decode_forecast import DecodeForecast
from shared.scheduling.events import BillFinished
from shared.scheduling.prediction_error import PredictionErrors


@dataclass(slots=True)
class Learnt:
    cost: CostModel
    forecast: DecodeForecast
    errors: PredictionErrors = field(default_factory=PredictionErrors)

    def learn(self, bill: BillFinished) -> None:
        cost = self.cost
        cost.learn_prefill(PrefillSample(bill.num_tokens, bill.cached_tokens, bill.compute_s))
        cost.learn_transfer(bill.fetched_bytes, bill.fetch_s)
        cost.learn_disk(bill.disk_bytes, bill.disk_s)
        if bill.predicted is not None and bill.predicted.tbt_s > 0:
            cost.learn_step(bill.tbt_s, bill.predicted.tbt_s / bill.predicted.tbt_scale)
        else:
            cost.learn_decode(bill.tbt_s, bill.num_tokens)
        if bill.output_tokens:
            self.forecast.ended(bill.decode_s)
            self.forecast.answered(bill.output_tokens)
        if bill.real is not None and bill.real.overhead_s > 0:
            cost.learn_request(bill.real.overhead_s)
        if bill.predicted is not None and bill.real is not None:
            self.errors.add(bill.predicted, bill.real, bill.ttft_s)
