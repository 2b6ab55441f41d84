"""Prompts that share one instance and one pool: everybody finishes, and nobody waits too long."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.scheduling.queue_discipline import DisciplineName
from shared.worker.prefill_queue import PrefillQueue

SPEED = 100.0
CHUNK_TOKENS = 256
NUM_SLOTS = 12


@dataclass
class Prompt:
    handle: str
    arrival_s: float
    num_tokens: int
    handover_s: float
    left: int = 0
    holds: int = 0
    first_s: float = -1.0
    done_s: float = -1.0

    @property
    def num_slots(self) -> int:
        return -(-self.num_tokens // CHUNK_TOKENS)


@dataclass
class Instance:
    """Does what prefill_pass does with the queue, on a clock of its own."""

    prompts: list[Prompt]
    queue: PrefillQueue
    now_s: float = 0.0
    order: list[str] = field(default_factory=list)
    handing_over: list[tuple[float, Prompt]] = field(default_factory=list)

    def run(self) -> None:
        waiting = sorted(self.prompts, key=lambda prompt: prompt.arrival_s)
        by_handle = {prompt.handle: prompt for prompt in waiting}
        num_idle = 0
        while waiting or len(self.queue) or self.handing_over:
            while waiting and waiting[0].arrival_s <= self.now_s:
                num_idle = 0
                prompt = waiting.pop(0)
                prompt.left = prompt.num_tokens
                num_tokens = prompt.num_tokens
                self.queue.add(prompt.handle, num_tokens, num_tokens, prompt.arrival_s)
                self.queue.loaded(prompt.handle, prompt.num_tokens)
            for due_s, prompt in list(self.handing_over):
                if due_s <= self.now_s:
                    num_idle = prompt.holds = 0
                    self.handing_over.remove((due_s, prompt))
            handle = self.queue.next(self.now_s)
            progressed = handle is not None and self._turn(by_handle[handle])
            num_idle = 0 if progressed else num_idle + 1
            if not progressed:
                later = [at for at, _ in self.handing_over] + [p.arrival_s for p in waiting[:1]]
                # Refused and others can go on: at once. Else time has to pass for something.
                assert num_idle < 3 or later or not len(self.queue), "stuck"
                if num_idle >= 2 and later:
                    self.now_s = max(self.now_s, min(later))

    def _turn(self, prompt: Prompt) -> bool:
        if not prompt.holds:
            held = sum(one.holds for one in self.prompts)
            if held + prompt.num_slots > NUM_SLOTS:
                if self.queue.must_yield(prompt.handle):
                    self.queue.lacks_slots(prompt.handle)
                return False
            prompt.holds = prompt.num_slots  # all or none
            prompt.first_s = self.now_s
            self.queue.started(prompt.handle)
        tokens = min(CHUNK_TOKENS, prompt.left)
        end = prompt.num_tokens - prompt.left + tokens
        prompt.left -= tokens
        self.queue.computing(prompt.handle, end, tokens, self.now_s)
        self.now_s += tokens / SPEED
        self.order.append(prompt.handle)
        self.queue.computed(prompt.handle, end, tokens, tokens / SPEED)
        self.queue.learn()
        if not prompt.left:
            prompt.done_s = self.now_s
            self.queue.remove(prompt.handle)
            self.handing_over.append((self.now_s + prompt.handover_s, prompt))
        return True


def prompts_of(raw: list[tuple[float, int, float]]) -> list[Prompt]:
    return [
        Prompt(str(number), arrival_s, num_tokens, handover_s)
        for number, (arrival_s, num_tokens, handover_s) in enumerate(raw)
    ]


PROMPTS = st.lists(
    st.tuples(
        st.floats(0.0, 40.0),
        st.integers(1, NUM_SLOTS * CHUNK_TOKENS),
        st.sampled_from([0.0, 0.5, 7.0]),
    ),
    min_size=1,
    max_size=12,
)


AGEING = 0.5


@given(raw=PROMPTS, discipline=st.sampled_from(["shortest_first", "fifo"]))
@settings(max_examples=150, deadline=None)
def test_every_prompt_finishes_however_short_the_pool_is(
    raw: list[tuple[float, int, float]], discipline: DisciplineName
) -> None:
    instance = Instance(prompts_of(raw), PrefillQueue(SPEED, discipline))
    instance.run()
    assert all(prompt.done_s >= prompt.arrival_s for prompt in instance.prompts)
    again = Instance(prompts_of(raw), PrefillQueue(SPEED, discipline))
    again.run()
    assert again.order == instance.order


@given(raw=PROMPTS)
@settings(max_examples=150, deadline=None)
def test_nobody_is_passed_by_what_comes_after_it_has_waited_for_its_work_by_the_ageing(
    raw: list[tuple[float, int, float]],
) -> None:
    """Without want of slots: the bound on how long short prompts can keep a long one back."""
    prompts = prompts_of([(at, tokens // NUM_SLOTS + 1, 0.0) for at, tokens, _ in raw])
    queue = PrefillQueue(SPEED, "shortest_first", AGEING)
    Instance(prompts, queue).run()
    for prompt in prompts:
        # The learnt cost may be off by some part of it.
        settled_s = prompt.arrival_s + 1.5 * queue.work_s(*[prompt.num_tokens] * 2) / AGEING + 1
        late = [other for other in prompts if other.arrival_s > settled_s]
        assert all(other.first_s >= prompt.done_s for other in late)


@given(arrival_s=st.floats(0.0, 100.0), num_tokens=st.integers(1, CHUNK_TOKENS))
@settings(max_examples=100, deadline=None)
def test_a_short_prompt_waits_for_one_chunk_of_a_long_one(
    arrival_s: float, num_tokens: int
) -> None:
    """Where the long one is nearly done, or has waited for long, that is no longer."""
    longest = Prompt("long", 0.0, (NUM_SLOTS - 1) * CHUNK_TOKENS, 0.0)
    short = Prompt("short", arrival_s, num_tokens, 0.0)
    Instance([longest, short], PrefillQueue(SPEED, ageing=0.0)).run()
    own_s, chunk_s = num_tokens / SPEED, CHUNK_TOKENS / SPEED
    assert short.done_s - arrival_s <= own_s + 2 * chunk_s + 1e-6
