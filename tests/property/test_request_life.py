"""Any order of losses, repeats, deaths and delays: one end, tokens in order, nothing held."""

import heapq
import random
import struct
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.life_events import (
    Abandoned,
    AskPlacement,
    CancelAttempt,
    ChunkArrived,
    Effect,
    Event,
    Fail,
    Finish,
    GivePrompt,
    GiveTokens,
    InstanceLost,
    InstanceReported,
    Placed,
    PlacementRefused,
    RunFailed,
    Stage,
    StartRun,
    TimePassed,
)
from services.gateway.request_life import LifeLimits, RequestLife
from shared.messages.bill import Times
from shared.messages.common import ErrorCode, ErrorInfo, InstanceRef, RequestRef
from shared.messages.conductor import Placement
from shared.messages.tokens import PromptLogprobs, TokenChunk

EOS = 1_000
DEADLINE_S = 120.0
LIMITS = LifeLimits(max_runs=4)


@dataclass
class Rates:
    """How often a thing goes wrong in one attempt, or with one message."""

    loss: float = 0.0
    repeat: float = 0.0
    death: float = 0.0
    refusal: float = 0.0
    error: float = 0.0
    leave: float = 0.0


@dataclass
class World:
    """A cluster of random faults around one life; time is the heap's."""

    rng: random.Random
    rates: Rates
    answer: list[int]
    life: RequestLife
    faulty_runs: int = 1_000
    reports_idle: bool = False
    prompt_tokens: int = 0
    """Of a prompt whose log probabilities are wanted; 0: they are not."""
    prompts: list[GivePrompt] = field(default_factory=list)
    now_s: float = 0.0
    given: list[int] = field(default_factory=list)
    ends: list[Finish | Fail] = field(default_factory=list)
    held: dict[int, Placement] = field(default_factory=dict)
    runs: int = 0
    _heap: list[tuple[float, int, Event]] = field(default_factory=list)
    _seq: int = 0

    def run(self) -> None:
        self.perform(self.life.start(0.0))
        if self.happens(self.rates.leave):
            gone = ErrorInfo(code=ErrorCode.CANCELLED, message="gone")
            self.later(Abandoned(gone), most_s=2.0)
        while (due_s := self.life.next_deadline_s()) is not None or self._heap:
            if self._heap and (due_s is None or self._heap[0][0] <= due_s):
                at_s, _, event = heapq.heappop(self._heap)
            else:
                assert due_s is not None
                at_s, event = due_s, TimePassed()
            self.now_s = max(self.now_s, at_s)
            self.perform(self.life.on_event(event, self.now_s))

    def later(self, event: Event, *, most_s: float = 0.5) -> None:
        self._at(self.now_s + self.rng.uniform(0.0, most_s), event)

    def _at(self, at_s: float, event: Event) -> None:
        self._seq += 1
        heapq.heappush(self._heap, (at_s, self._seq, event))

    def happens(self, rate: float) -> bool:
        return self.rng.random() < rate

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case AskPlacement():
                    self._place(effect)
                case StartRun():
                    self.runs += 1
                    if self.runs > self.faulty_runs:
                        self.rates = Rates()
                    assert list(effect.given) == self.given
                    self._run(effect)
                case CancelAttempt():
                    assert self.held.pop(effect.attempt).prefill == effect.prefill
                case GivePrompt():
                    assert not self.given
                    assert not self.ends
                    self.prompts.append(effect)
                case GiveTokens():
                    assert not self.ends
                    assert effect.first_index == len(self.given)
                    self.given.extend(effect.tokens)
                case Finish() | Fail():
                    self.ends.append(effect)

    def _place(self, ask: AskPlacement) -> None:
        if self.happens(self.rates.refusal):
            code = self.rng.choice([ErrorCode.NO_INSTANCE, ErrorCode.OVERLOADED])
            error = ErrorInfo(code=code, message="no", is_retryable=True)
            self.later(PlacementRefused(ask.attempt, error))
            return
        number = self.rng.randrange(1_000_000)
        placement = Placement(
            prefill=InstanceRef(id="p", incarnation=f"p{number}", node="a"),
            decode=InstanceRef(id="d", incarnation=f"d{number}", node="b") if self.answer else None,
            local_blocks=0,
            source=None,
            predicted=Times(),
            policy="p",
        )
        assert placement.prefill.incarnation not in ask.exclude
        self.held[ask.attempt] = placement
        self.later(Placed(ask.attempt, placement))

    def _run(self, start: StartRun) -> None:
        first = len(start.given)
        ref = RequestRef(
            request_id="r", attempt=start.attempt, gateway="g", gateway_incarnation="i"
        )
        at_s = self.now_s
        if start.needs_scores and not self._send_prompt(ref):
            return
        if start.needs_scores:
            self.now_s += 0.3  # until all of it was heard
        self._run_on(start, ref, first)
        self.now_s = at_s

    def _send_prompt(self, ref: RequestRef) -> bool:
        """Pieces that name their attempt; False: it dies among them, and somebody notices."""
        places = list(range(1, self.prompt_tokens))
        dies = self.happens(self.rates.death)
        for first in places[: self.rng.randrange(len(places) + 1) if dies else None]:
            piece = PromptLogprobs(first=first, logprobs=struct.pack("<f", ref.attempt))
            chunk = TokenChunk(ref=ref, stage="prefill", index=0, prompt=piece)
            for _ in range(1 + self.happens(self.rates.repeat)):
                self.later(ChunkArrived(chunk), most_s=0.2)
        if dies:
            lost = self.held[ref.attempt].prefill
            self.later(InstanceLost(lost.incarnation, "gone", self.happens(0.5)), most_s=2.0)
        return not dies

    def _run_on(self, start: StartRun, ref: RequestRef, first: int) -> None:
        placed = (start.placement.prefill, start.placement.decode)
        instances = [one for one in placed if one is not None]
        both: list[Stage] = ["prefill", "decode"]
        stages = both[: len(instances)]
        if self.happens(self.rates.error):
            code = self.rng.choice(list(ErrorCode))
            error = ErrorInfo(code=code, message="broke", is_retryable=self.happens(0.8))
            self.later(RunFailed(start.attempt, self.rng.choice(stages), error))
        if self.happens(self.rates.error):
            broke = ErrorInfo(code=ErrorCode.INTERNAL, message="broke", is_retryable=True)
            stage = self.rng.choice(stages)
            said = TokenChunk(ref=ref, stage=stage, index=first, error=broke)
            self.later(ChunkArrived(said), most_s=3.0)
        if self.happens(self.rates.death):
            lost = self.rng.choice(instances)
            self.later(InstanceLost(lost.incarnation, "gone", self.happens(0.5)), most_s=2.0)
            first = len(self.answer)  # says nothing more, not even its last word
            if self.happens(0.5):
                return
        chunks = [
            TokenChunk(
                ref=ref,
                stage="prefill" if index == 0 else "decode",
                index=index,
                tokens=self.answer[index : index + 1],
            )
            for index in range(first, len(self.answer))
        ]
        reason = "stop" if self.answer[-1:] == [EOS] else "length"
        last = TokenChunk(ref=ref, stage=stages[-1], index=len(self.answer), finish_reason=reason)
        if self.reports_idle:
            # Long after the work is done the instances say that they have none.
            for at_s in (4.0, 8.0, 12.0, 16.0, 20.0):
                for instance in instances:
                    self._at(self.now_s + at_s, InstanceReported(instance.incarnation, True))
        for chunk in [*chunks, last]:
            copies = 0 if self.happens(self.rates.loss) else 1 + self.happens(self.rates.repeat)
            for _ in range(copies):
                self.later(ChunkArrived(chunk))


def make_world(
    seed: int, rates: Rates, num_tokens: int, *, ends_with_eos: bool, prompt_tokens: int = 0
) -> World:
    answer = [*range(num_tokens - 1), EOS if ends_with_eos else num_tokens - 1][:num_tokens]
    rng = random.Random(seed)
    life = RequestLife(
        max_tokens=num_tokens + 5 if ends_with_eos else num_tokens,
        eos_token_ids=frozenset({EOS}),
        deadline_s=DEADLINE_S,
        rng=rng,
        scored_tokens=prompt_tokens,
        limits=LIMITS,
    )
    return World(rng, rates, answer, life, prompt_tokens=prompt_tokens)


RATE = st.sampled_from([0.0, 0.1, 0.5, 1.0])


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.builds(Rates, loss=RATE, repeat=RATE, death=RATE, refusal=RATE, error=RATE, leave=RATE),
    st.integers(1, 8),
    st.booleans(),
)
def test_any_faults_lead_to_exactly_one_end_with_the_tokens_in_order(
    seed: int, rates: Rates, num_tokens: int, ends_with_eos: bool
) -> None:
    world = make_world(seed, rates, num_tokens, ends_with_eos=ends_with_eos)
    world.run()
    assert len(world.ends) == 1
    assert world.now_s <= DEADLINE_S + 2.0
    assert world.given == world.answer[: len(world.given)]
    # A run that was handed back with new tokens has not failed.
    assert world.runs <= LIMITS.max_runs + num_tokens
    if isinstance(world.ends[0], Finish):
        assert world.given == world.answer
        assert world.ends[0].reason == ("stop" if ends_with_eos else "length")
        # Only the attempt that ended by itself is not cancelled.
        assert set(world.held) <= {world.life.attempt}
    else:
        assert not world.held, "an attempt of a failed request was left running"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8), st.booleans())
def test_disorder_and_repeats_alone_cost_no_attempt(
    seed: int, num_tokens: int, ends_with_eos: bool
) -> None:
    world = make_world(seed, Rates(repeat=0.7), num_tokens, ends_with_eos=ends_with_eos)
    world.run()
    assert isinstance(world.ends[0], Finish)
    assert world.given == world.answer
    assert world.runs == 1


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.builds(Rates, loss=RATE, repeat=RATE, death=RATE),
    st.integers(1, 8),
    st.booleans(),
)
def test_faults_that_pass_never_cost_the_answer(
    seed: int, rates: Rates, num_tokens: int, ends_with_eos: bool
) -> None:
    world = make_world(seed, rates, num_tokens, ends_with_eos=ends_with_eos)
    world.faulty_runs = LIMITS.max_runs - 1
    world.reports_idle = True
    world.run()
    assert isinstance(world.ends[0], Finish)
    assert world.given == world.answer
    assert world.runs <= LIMITS.max_runs


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.builds(Rates, loss=RATE, repeat=RATE, death=RATE, refusal=RATE, error=RATE, leave=RATE),
    st.integers(0, 4),
    st.integers(1, 6),
)
def test_a_prompts_scores_are_given_once_before_all_tokens_and_of_one_attempt(
    seed: int, rates: Rates, num_tokens: int, prompt_tokens: int
) -> None:
    world = make_world(seed, rates, num_tokens, ends_with_eos=False, prompt_tokens=prompt_tokens)
    world.run()
    assert len(world.ends) == 1
    assert len(world.prompts) <= 1
    assert bool(world.prompts) >= bool(world.given)
    if isinstance(world.ends[0], Finish):
        assert world.given == world.answer
        (prompt,) = world.prompts
        assert [one.first for one in prompt.pieces] == list(range(1, prompt_tokens))
        assert len({one.logprobs for one in prompt.pieces}) <= 1
    else:
        assert not world.held, "an attempt of a failed request was left running"


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.builds(Rates, repeat=RATE, death=RATE),
    st.integers(0, 4),
    st.integers(1, 6),
)
def test_faults_that_pass_never_cost_the_prompts_scores(
    seed: int, rates: Rates, num_tokens: int, prompt_tokens: int
) -> None:
    world = make_world(seed, rates, num_tokens, ends_with_eos=False, prompt_tokens=prompt_tokens)
    world.faulty_runs = LIMITS.max_runs - 1
    world.reports_idle = True
    world.run()
    assert isinstance(world.ends[0], Finish)
    assert world.given == world.answer
    assert len(world.prompts) == 1
    assert world.runs <= LIMITS.max_runs
