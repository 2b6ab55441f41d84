"""What a request that ended adds to the gateway's metrics."""

from services.gateway.job import Job
from services.gateway.life_events import StageReported
from services.gateway.request_metrics import RequestMetrics
from services.gateway.request_record import RequestRecord
from shared.messages.bill import Reuse, Times
from shared.messages.common import Sampling
from shared.telemetry import metrics

JOB = Job(
    request_id="r",
    client_id="r",
    model="m",
    packed_tokens=b"",
    num_tokens=1,
    chain=b"",
    sampling=Sampling(max_tokens=1),
    cache="on",
    prefill=None,
    decode=None,
    received_s=0.0,
    deadline_s=1.0,
)


def test_prefill_is_wasted_only_by_a_request_that_decode_refused() -> None:
    kept = RequestMetrics()
    for is_refused in (False, True):
        record = RequestRecord(received_s=0.0, prompt_tokens=1)
        record.note_stage(StageReported(0, "prefill", Times(compute_s=2.5), Reuse()))
        record.is_refused_by_decode = is_refused
        kept.ended(JOB, record, "overloaded", None)
    values = {one.metric.name: one.value for one in kept.readings() if one.labels == ("m",)}
    assert values[metrics.WASTED_PREFILL.name] == 2.5
