"""The bill of a request from what its stages say."""

from services.gateway.job import Job
from services.gateway.life_events import StageReported
from services.gateway.request_record import RequestRecord, bill_for_client, cached_from
from shared.messages.bill import Reuse, Times, joined_transports
from shared.messages.common import InstanceRef, Sampling
from shared.messages.conductor import Placement

PREFILL = InstanceRef(id="p", incarnation="pi", node="a")
DECODE = InstanceRef(id="d", incarnation="di", node="b")
PLACEMENT = Placement(
    prefill=PREFILL,
    decode=DECODE,
    local_blocks=0,
    source=None,
    predicted=Times(ttft_s=0.5),
    policy="p",
)


def record(prompt_tokens: int = 100) -> RequestRecord:
    made = RequestRecord(received_s=10.0, prompt_tokens=prompt_tokens)
    made.note_placement(PLACEMENT)
    made.num_attempts = 1
    return made


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
    traceparent="00-t-s-01",
    tenant="acme",
    user="ann",
)


def test_stages_of_one_attempt_make_one_bill() -> None:
    made = record()
    prefill = Reuse(local_tokens=32, remote_tokens=16, fetched_bytes=7, transport="local")
    decode = prefill.model_copy(update={"streamed_bytes": 5, "stream_s": 0.5})
    made.note_stage(StageReported(0, "prefill", Times(compute_s=0.2), prefill))
    made.note_tokens(1, 11.0)
    made.note_tokens(2, 11.5)
    made.note_stage(StageReported(0, "decode", Times(handoff_s=0.1), decode))
    bill = made.bill(JOB)
    assert bill is not None
    assert bill.real == Times(compute_s=0.2, overhead_s=0.8, handoff_s=0.1, ttft_s=1.0, tbt_s=0.5)
    assert bill.output_tokens == 3
    assert (bill.traceparent, bill.tenant, bill.user) == ("00-t-s-01", "acme", "ann")
    shown = bill_for_client(bill)
    assert (shown["bytes_moved"], shown["cached_from"], shown["transfer_s"]) == (12, "mixed", 0.5)
    assert shown["bill"]["predicted"]["ttft_s"] == 0.5


def test_the_bill_names_all_that_moved_bytes() -> None:
    made = record()
    fetched = Reuse(remote_tokens=16, fetched_bytes=7, transport="local")
    made.note_stage(StageReported(0, "prefill", None, fetched))
    streamed = {"streamed_bytes": 10, "hidden_bytes": 9, "tail_s": 0.25, "transport": "local+tcp"}
    made.note_stage(StageReported(0, "decode", None, fetched.model_copy(update=streamed)))
    assert made.reuse.transport == "local+tcp"
    assert (made.reuse.hidden_bytes, made.reuse.tail_s) == (9, 0.25)
    assert joined_transports([]) == "none"
    assert joined_transports(["none", "tcp", "local+tcp"]) == "local+tcp"


def test_cached_tokens_are_those_of_the_first_prefill_and_never_more_than_the_prompt() -> None:
    made = record(prompt_tokens=40)
    made.note_stage(StageReported(0, "prefill", None, Reuse(local_tokens=32, remote_tokens=32)))
    made.note_stage(StageReported(1, "decode", None, Reuse(local_tokens=0, fetched_bytes=9)))
    assert made.cached_tokens == 40
    assert (made.reuse.local_tokens, made.reuse.remote_tokens) == (32, 8)
    assert made.reuse.fetched_bytes == 9


def test_a_request_that_was_never_placed_has_no_bill() -> None:
    made = RequestRecord(received_s=0.0, prompt_tokens=1)
    assert made.bill(JOB) is None
    assert made.cached_tokens == 0


def test_where_the_cache_was_has_four_names() -> None:
    assert cached_from(Reuse()) == "none"
    assert cached_from(Reuse(local_tokens=1)) == "local"
    assert cached_from(Reuse(remote_tokens=1)) == "remote"
    assert cached_from(Reuse(local_tokens=1, remote_tokens=1)) == "mixed"


def test_an_answer_without_tokens_takes_until_its_end_and_has_no_decode() -> None:
    made = record()
    made.note_placement(PLACEMENT.model_copy(update={"decode": None}))
    times = Times(compute_s=2.0, score_s=0.5)
    made.note_stage(StageReported(0, "prefill", times, Reuse(scored_tokens=99)))
    assert made.ttft_s == 0.0
    made.note_end(13.0)
    bill = made.bill(JOB)
    assert bill is not None
    assert bill.real == Times(compute_s=2.0, score_s=0.5, overhead_s=1.0, ttft_s=3.0)
    assert (bill.decode, bill.output_tokens, bill.decode_s) == (None, 0, 0.0)
    shown = bill_for_client(bill)
    assert (shown["decode"], shown["decode_node"], shown["scored_tokens"]) == (None, None, 99)


def test_what_was_scored_is_told_though_a_later_attempt_scored_nothing() -> None:
    made = record()
    made.note_stage(StageReported(0, "prefill", None, Reuse(scored_tokens=99)))
    made.note_stage(StageReported(1, "decode", None, Reuse(local_tokens=64)))
    assert (made.reuse.scored_tokens, made.cached_tokens) == (99, 0)


def test_a_request_that_decode_refused_says_what_was_computed_for_nothing() -> None:
    made = record()
    made.note_stage(StageReported(0, "prefill", Times(compute_s=2.0), Reuse(local_tokens=64)))
    assert made.wasted_prefill_s == 0.0
    made.is_refused_by_decode = True
    bill = made.bill(JOB)
    assert bill is not None
    assert (bill.wasted_prefill_s, bill.output_tokens, bill.real.ttft_s) == (2.0, 0, 0.0)
    assert bill_for_client(bill)["wasted_prefill_s"] == 2.0
