"""From reports to metrics: what a service keeps is what a scrape shows."""

from services.cache_index.readings import readings_of as index_readings
from services.conductor.readings import ConductorReadings, Decisions
from services.gateway.job import Job
from services.gateway.request_metrics import RequestMetrics
from services.gateway.request_record import RequestRecord
from services.transfer.traffic import Traffic
from shared.messages.bill import FinishedBill, Reuse, Times
from shared.messages.common import ErrorCode, InstanceRef, Sampling
from shared.messages.conductor import PredictionError, StateReply
from shared.messages.index import IndexStats
from shared.messages.reports import GatewayReport, InstanceReport
from shared.runtime.errors import ServiceError
from shared.telemetry import metrics
from shared.telemetry.meters import Meters, Source
from shared.transport.base import PeerLost
from shared.worker.parts import Load
from shared.worker.readings import readings_of as worker_readings
from tests.support.scraping import Scrape

MODEL = "m"


def scraped(*sources: tuple[str, Source]) -> Scrape:
    meters = Meters()
    for service, source in sources:
        meters.add(service, source)
    return Scrape(meters.text()[0].decode())


def instance(service: str, **fields: object) -> InstanceReport:
    return InstanceReport.model_validate(
        {
            "service": service, "id": f"{service}-1", "incarnation": "i", "node": "n",
            "node_incarnation": "ni", "state": "ready", "model": MODEL, "root": b"r",
            "kv_format": {}, "block_tokens": 256, "grid_tokens": 256, "block_bytes": 1,
            "context_tokens": 1, **fields,
        }
    )  # fmt: skip


def test_a_process_of_both_roles_shows_each_by_its_role() -> None:
    prefill = instance("prefill", running=2, queued_requests=3, queued_tokens=700)
    decode = instance("decode", running=4, free_tokens=10, capacity_tokens=100, state="draining")
    scrape = scraped(
        ("prefill", lambda: worker_readings(prefill, Load(computed_tokens_total=512))),
        ("decode", lambda: worker_readings(decode, Load(computed_tokens_total=9, steps_total=3))),
    )
    for role, running, ready in (("prefill", 2, 1), ("decode", 4, 0)):
        assert scrape.value(metrics.RUNNING, role=role, model=MODEL) == running
        assert scrape.value(metrics.WORKER_READY, role=role, model=MODEL) == ready
    assert scrape.value(metrics.PREFILL_TOKENS) == 512
    assert scrape.value(metrics.PREFILL_QUEUED_TOKENS) == 700
    assert (scrape.value(metrics.DECODE_TOKENS), scrape.value(metrics.DECODE_STEPS)) == (9, 3)
    assert scrape.value(metrics.DECODE_FREE) == 10


def test_traffic_is_by_transport_purpose_and_reason() -> None:
    traffic = Traffic()
    traffic.moved("request", {"local": 100, "tcp": 20}, 0.5)
    traffic.moved("stream", {"tcp": 7}, 0.1)
    traffic.moved("request", {}, 9.0)
    traffic.failed("stream", ServiceError(ErrorCode.KV_LOST, "gone"))
    traffic.failed("request", PeerLost("gone"))
    traffic.failed("request", TimeoutError())
    assert traffic.num_bytes() == 127
    scrape = scraped(("transfer", traffic.readings))
    assert scrape.value(metrics.TRANSFER_BYTES, transport="tcp", purpose="request") == 20
    assert scrape.total(metrics.TRANSFER_BYTES, transport="tcp") == 27
    assert scrape.count(metrics.TRANSFER_TIME, purpose="request") == 1
    for purpose, reason in (
        ("stream", "kv_lost"), ("request", "peer_lost"), ("request", "deadline"),
    ):  # fmt: skip
        assert scrape.value(metrics.TRANSFER_FAILURES, purpose=purpose, reason=reason) == 1


def test_what_is_known_of_redis_and_nodes_is_shown() -> None:
    stats = IndexStats(index_epoch="e", nodes={"n1": 4, "n2": 5}, is_redis_up=False, gaps_total=2)
    scrape = scraped(("cache-index", lambda: index_readings(stats)))
    assert scrape.value(metrics.INDEX_REPLICAS, node="n2") == 5
    assert scrape.value(metrics.INDEX_REDIS_UP) == 0
    assert scrape.value(metrics.INDEX_GAPS) == 2


def test_a_conductor_shows_its_decisions_and_how_far_it_was_off() -> None:
    decisions = Decisions()
    decisions.placed("moonpool")
    decisions.refused("overloaded")
    decisions.took(0.003)
    error = PredictionError(num_requests=4, p50=0.2, p90=0.5, bias=-0.1)
    state = StateReply(
        conductor="c",
        instances=[instance("decode"), instance("decode", id="decode-2", state="draining")],
        gateways=[GatewayReport(id="g", incarnation="i", state="ready")],
        prediction_errors={MODEL: {"ttft": error}},
    )
    readings = ConductorReadings(decisions, lambda: state)
    scrape = scraped(("conductor", readings.readings))
    assert scrape.value(metrics.PLACEMENTS, policy="moonpool") == 1
    assert scrape.value(metrics.PLACEMENT_REFUSALS, reason="overloaded") == 1
    assert scrape.count(metrics.PLACEMENT_TIME) == 1
    assert scrape.value(metrics.KNOWN_PROCESSES, service="decode", state="draining") == 1
    assert scrape.value(metrics.KNOWN_PROCESSES, service="gateway", state="ready") == 1
    labels = {"model": MODEL, "component": "ttft"}
    assert scrape.value(metrics.PREDICTION_ERROR, statistic="bias", **labels) == -0.1


def job(**fields: object) -> Job:
    base: dict[str, object] = {
        "request_id": "r", "client_id": "r", "model": MODEL, "packed_tokens": b"",
        "num_tokens": 600, "chain": b"", "sampling": Sampling(max_tokens=4), "cache": "on",
        "prefill": None, "decode": None, "received_s": 0.0, "deadline_s": 9.0, **fields,
    }  # fmt: skip
    return Job(**base)  # type: ignore[arg-type]


def bill(ttft_s: float, **reuse: int) -> FinishedBill:
    ref = InstanceRef(id="p", incarnation="i", node="n")
    return FinishedBill(
        request_id="r",
        model=MODEL,
        prefill=ref,
        decode=ref,
        predicted=Times(),
        real=Times(ttft_s=ttft_s, queue_s=0.25, tbt_s=0.5),
        reuse=Reuse(prompt_tokens=600, **reuse),
        output_tokens=3,
        decode_s=0.5,
    )


def record(*given_s: float) -> RequestRecord:
    made = RequestRecord(received_s=0.0, prompt_tokens=600)
    for at_s in given_s:
        made.note_tokens(1, at_s)
    made.num_attempts = 2
    return made


def test_a_finished_request_is_its_bill() -> None:
    seen = RequestMetrics()
    found = bill(1.0, local_tokens=300, disk_tokens=100, remote_tokens=200)
    seen.ended(job(ttft_slo_ms=900.0, tbt_slo_ms=600.0), record(1.0, 1.1, 1.5), "stop", found)
    scrape = scraped(("gateway", seen.readings))
    for source, tier, tokens in (
        ("local", "dram", 200), ("local", "ssd", 100), ("remote", "dram", 200),
    ):  # fmt: skip
        assert scrape.value(metrics.PREFIX_HITS, model=MODEL, source=source, tier=tier) == tokens
    assert scrape.value(metrics.PREFIX_QUERIES, model=MODEL) == 600
    assert scrape.value(metrics.RETRIES, model=MODEL) == 1
    assert scrape.sum(metrics.TTFT, model=MODEL) == 1.0
    assert scrape.sum(metrics.DURATION, model=MODEL) == 1.5
    assert scrape.count(metrics.ITL, model=MODEL) == 2
    assert scrape.sum(metrics.QUEUE_TIME, model=MODEL) == 0.25
    assert scrape.value(metrics.SLO_REQUESTS, target="ttft", met="no") == 1
    assert scrape.value(metrics.SLO_REQUESTS, target="tbt", met="yes") == 1


def test_a_request_without_the_cache_asks_it_nothing() -> None:
    seen = RequestMetrics()
    seen.ended(job(cache="off"), record(1.0), "length", bill(1.0))
    seen.ended(job(), record(1.0), "length", bill(1.0, scored_tokens=599))
    assert scraped(("gateway", seen.readings)).value(metrics.PREFIX_QUERIES, model=MODEL) == 0


def test_what_failed_is_a_refusal_and_what_nobody_waited_for_is_none() -> None:
    seen = RequestMetrics()
    seen.ended(job(), record(), "overloaded", None)
    seen.ended(job(), record(), "", None)
    scrape = scraped(("gateway", seen.readings))
    assert scrape.value(metrics.REQUESTS, model=MODEL, outcome="overloaded") == 1
    assert scrape.value(metrics.REQUESTS, model=MODEL, outcome="cancelled") == 1
    assert scrape.value(metrics.REFUSALS, reason="overloaded") == 1
    assert scrape.total(metrics.REFUSALS) == 1
    assert scrape.count(metrics.TTFT, model=MODEL) == 0
